package sandbox

import (
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// What sandboxes are made from, as package spec describes it in full.
type (
	// Config describes a sandbox. Its zero value is the safest one.
	Config = spec.Config
	// Limits bound what a sandbox, or one command, can use up.
	Limits = spec.Limits
	// Bind shows a path of the host inside.
	Bind = spec.Bind
	// User is who a command runs as, inside.
	User = spec.User
	// Network is what a sandbox can reach.
	Network = spec.Network
	// Size is a number of bytes.
	Size = spec.Size
	// CPUs is an amount of processor time per time.
	CPUs = spec.CPUs
	// Duration is a time.Duration that JSON writes as Go does.
	Duration = spec.Duration
	// Storage is where what a sandbox writes is kept.
	Storage = spec.Storage
	// FieldError is a mistake in one field of a Config.
	FieldError = spec.FieldError
)

// What a sandbox has changed in its overlays, as package spec describes it in full.
type (
	// Change is one path that is other than it was.
	Change = spec.Change
	// ChangeKind tells what became of a path.
	ChangeKind = spec.ChangeKind
	// FileType is what a path is.
	FileType = spec.FileType
)

// The kinds of changes.
const (
	Created  = spec.Created
	Modified = spec.Modified
	Deleted  = spec.Deleted
)

// The types of files.
const (
	TypeFile      = spec.TypeFile
	TypeDirectory = spec.TypeDirectory
	TypeSymlink   = spec.TypeSymlink
	TypeFIFO      = spec.TypeFIFO
	TypeSocket    = spec.TypeSocket
	TypeDevice    = spec.TypeDevice
)

// NetworkNone is a network of which a sandbox has only the loopback device.
const NetworkNone = spec.NetworkNone

// Where what a sandbox writes is kept.
const (
	StorageMemory = spec.StorageMemory
	StorageDisk   = spec.StorageDisk
)

// WorkspacePath is where the workspace is inside.
const WorkspacePath = spec.WorkspacePath

// What became of a command, as package spec describes it in full.
type (
	// Result is what became of a command.
	Result = spec.Result
	// Status tells how a command ended.
	Status = spec.Status
	// Violation is a limit that was hit or an act that was refused.
	Violation = spec.Violation
	// Isolation is how far a command was kept from the host.
	Isolation = spec.Isolation
	// LimitReport says which limits the host enforces.
	LimitReport = spec.LimitReport
	// Enforcement is the state of one kind of limit.
	Enforcement = spec.Enforcement
)

// The ways a command ends.
const (
	// StatusExited: it ended by itself, with Result.ExitCode.
	StatusExited = spec.StatusExited
	// StatusTimedOut: its timeout ended it and all it had started.
	StatusTimedOut = spec.StatusTimedOut
	// StatusOOMKilled: the kernel killed it at the memory limit.
	StatusOOMKilled = spec.StatusOOMKilled
	// StatusSignaled: a signal ended it, the caller's giving up included.
	StatusSignaled = spec.StatusSignaled
	// StatusLimit: a limit other than memory and time ended it.
	StatusLimit = spec.StatusLimit
	// StatusDenied: it did what the sandbox forbids and was killed for it.
	StatusDenied = spec.StatusDenied
	// StatusLost: the sandbox went away underneath it.
	StatusLost = spec.StatusLost
	// StatusError: it was never run.
	StatusError = spec.StatusError
)

// Degrees of isolation.
const (
	IsolationFull = spec.IsolationFull
	IsolationNone = spec.IsolationNone
)

// Info describes a sandbox that exists.
type Info struct {
	ID string
	// Provider that made it.
	Provider string
	// Reused says that Up found it there.
	Reused bool
	State  State
	// From is the snapshot that it has begun with, which may be gone.
	From string
	// Config is what it was made from, with every default filled in.
	Config Config
	// Pid of its first process on the host, 0 where there is none.
	Pid     int
	Created time.Time
	// Isolation of the commands that run in it.
	Isolation Isolation
	Limits    LimitReport
	// Notes name what the host could not do as usual and what was done
	// instead.
	Notes []string
}

// State is what a sandbox is doing.
type State string

// The states of a sandbox.
const (
	StateRunning State = "running"
	StatePaused  State = "paused"
	// StateStopped: its first process is gone, nothing runs in it any more.
	// It can be removed, or replaced by Up.
	StateStopped State = "stopped"
)

// What a Manager tells of sandboxes, as package spec describes it in full.
type (
	// ExecInfo describes a command that runs in a sandbox, or a detached one that has
	// ended and whose result nobody has taken yet.
	ExecInfo = spec.ExecInfo
	// Stats are what a sandbox uses now, and the most that it has used.
	Stats = spec.Stats
	// Winsize is the size of a terminal, in characters.
	Winsize = spec.Winsize
	// Event tells what happened to a sandbox.
	Event = spec.Event
	// EventType is the kind of an event.
	EventType = spec.EventType
)

// The events.
const (
	EventCreated = spec.EventCreated
	EventRemoved = spec.EventRemoved
	// EventDied: PID 1 has ended, the rest of the sandbox is still there.
	EventDied = spec.EventDied
	// EventOOM: the kernel has killed a process at the memory limit.
	EventOOM = spec.EventOOM
	// EventLost: there were more events than the receiver took.
	EventLost = spec.EventLost
)
