package sandbox

import (
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// The configuration of sandboxes; package spec describes it in full.
type (
	// Config describes a sandbox. Its zero value is the safest one. The fields, which
	// docs/reference.md describes with defaults and bounds:
	//
	//	Rootfs    string            // directory that becomes the root; "": the host's programs
	//	Image     string            // image whose files become the root: a name or an id
	//	Writable  bool              // the root of Image takes writes, which go to a layer
	//	Workspace string            // host directory at /workspace; "": an empty one
	//	Binds     []Bind            // further host paths, read-only or writable
	//	Overlays  []string          // host directories whose changes go to a layer
	//	Storage   Storage           // of the sandbox's writes: memory or disk
	//	Network   Network           // NetworkNone, NetworkProxied or NetworkFull
	//	Allow     []string          // names of NetworkProxied, addresses that NetworkFull reaches beside public ones
	//	Deny      []string          // names and addresses that are not reached
	//	Observe   bool              // NetworkProxied reaches each name that Deny does not forbid
	//	Ask       bool              // NetworkProxied asks DecideNetwork about names without a rule
	//	UpstreamProxy string        // proxy of the host's network for NetworkProxied: a URL or "env"
	//	Publish   []string          // ports of the host that lead inside, as 8080:80
	//	Sensitivity Sensitivity     // level of the data inside, which bounds Network
	//	Ceilings  map[Sensitivity]Network // widest networks of the levels
	//	PID       PID               // PIDPrivate or PIDHost
	//	Limits    Limits            // of all resources
	//	Timeout   Duration          // of each command; 0: none, in Run one minute
	//	Grace     Grace             // between SIGTERM and SIGKILL; 0: 2s, NoGrace: SIGKILL at once
	//	User      *User             // nil: 1000:1000
	//	Env       map[string]string // added to PATH, HOME, USER, SHELL, LANG and TERM
	//	Cwd       string            // "": the only overlay, else /workspace
	//	Hostname  string            // "": sandbox
	//	Seccomp   string            // default, strict, debug or a file; "": default
	Config = spec.Config
	// Limits bound the resources of a sandbox, or of one command. 0 is the default. The
	// fields:
	//
	//	Memory   Size  // bytes of memory and swap; 1 GiB
	//	CPUs     CPUs  // cores' worth of processor time; 1
	//	Pids     int64 // processes and threads at once; 512
	//	FileSize Size  // bytes of the largest file; Unlimited
	//	NoFile   int64 // open files of one process; 4096
	//	ShmSize  Size  // bytes of /dev/shm; 64 MiB
	//	Disk     Size  // bytes of all kept writes; 1 GiB, in memory 3/4 of Memory at most
	//	Files    int64 // number of files in Disk; one for each 8 KiB
	//	IORead   Size  // bytes per second read from disk; Unlimited
	//	IOWrite  Size  // bytes per second written to disk; Unlimited
	//
	//	NetworkRate, NetworkQuota Size // bytes per second each way, bytes in all; Unlimited
	//	NetworkRequests          int64 // connections and requests of NetworkProxied; unlimited
	Limits = spec.Limits
	// Bind shows a path of the host inside.
	Bind = spec.Bind
	// User is the identity of a command, inside.
	User = spec.User
	// Network is the part of the network that a sandbox can reach.
	Network = spec.Network
	// Sensitivity is the level of the most sensitive data that a sandbox has seen.
	Sensitivity = spec.Sensitivity
	// NetworkGrant is the network that the owner of a sandbox grants:
	//
	//	Network Network  // NetworkNone, NetworkProxied or NetworkFull
	//	Allow   []string // those of Config
	//	Deny    []string
	//	Observe bool
	//	Ask     bool
	//	Publish []string
	//	UpstreamProxy string
	NetworkGrant = spec.NetworkGrant
	// NetworkEvent is one decision of NetworkProxied:
	//
	//	Time           time.Time
	//	Name, Address  string // that was asked for, and the server's
	//	Port           uint16 // 0: a lookup of the name
	//	Sent, Received int64  // bytes
	//	Rule           string // the one that has decided
	//	Decision       string // NetworkAllowed, NetworkDenied or NetworkFailed
	//	Reason         string // for a person or a model
	//	Upstream       string // proxy that was asked, without its password
	NetworkEvent = spec.NetworkEvent
	// NetworkChange tells what a change of a live sandbox's network has done:
	//
	//	From, To       Network
	//	Sensitivity    Sensitivity // of the sandbox now
	//	Raised         bool        // whether this change has raised the sensitivity
	//	ConnectionsCut int         // sockets in the sandbox that have ended
	//	Message        string      // for a person or an agent
	NetworkChange = spec.NetworkChange
	// PID names the pid namespace of a sandbox.
	PID = spec.PID
	// Size is a number of bytes.
	Size = spec.Size
	// CPUs is an amount of processor time per time.
	CPUs = spec.CPUs
	// Duration is a time.Duration that JSON writes as Go does.
	Duration = spec.Duration
	// Grace is the time between SIGTERM and SIGKILL; "0s" in JSON is NoGrace.
	Grace = spec.Grace
	// Storage is the place of a sandbox's writes.
	Storage = spec.Storage
	// FieldError is a mistake in one field of a Config.
	FieldError = spec.FieldError
)

// The changes of a sandbox in its overlays; package spec describes them in full.
type (
	// Change is one path that is other than it was.
	Change = spec.Change
	// ChangeKind is the kind of a change.
	ChangeKind = spec.ChangeKind
	// FileType is the type of a path.
	FileType = spec.FileType
	// Unapplied is a change that is not applied, or a part of one.
	Unapplied = spec.Unapplied
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

// Times between SIGTERM and SIGKILL.
const (
	DefaultGrace = spec.DefaultGrace
	NoGrace      = spec.NoGrace
	MaxGrace     = spec.MaxGrace
)

const (
	// NetworkNone is a loopback device and nothing else.
	NetworkNone = spec.NetworkNone
	// NetworkProxied is the names and addresses that Allow grants, with any protocol over TCP, and nothing else.
	NetworkProxied = spec.NetworkProxied
	// NetworkFull is the outside, without the host and other sandboxes. Only root has it, and
	// users whose rule allows it.
	NetworkFull = spec.NetworkFull
)

// UpstreamEnv is the Config.UpstreamProxy that stands for HTTP_PROXY, HTTPS_PROXY and NO_PROXY of the environment.
const UpstreamEnv = spec.UpstreamEnv

// The decisions of a NetworkEvent.
const (
	NetworkAllowed = spec.NetworkAllowed
	NetworkDenied  = spec.NetworkDenied
	NetworkFailed  = spec.NetworkFailed
)

// The levels of sensitivity, the lowest first.
const (
	SensitivityPublic       = spec.SensitivityPublic
	SensitivityInternal     = spec.SensitivityInternal
	SensitivityConfidential = spec.SensitivityConfidential
	SensitivitySecret       = spec.SensitivitySecret
)

// PIDPrivate is a pid namespace of the sandbox's own, PIDHost that of the launcher.
const (
	PIDPrivate = spec.PIDPrivate
	PIDHost    = spec.PIDHost
)

// The places of a sandbox's writes.
const (
	StorageMemory = spec.StorageMemory
	StorageDisk   = spec.StorageDisk
)

// WorkspacePath is where the workspace is inside.
const WorkspacePath = spec.WorkspacePath

// The end of a command; package spec describes it in full.
type (
	// Result describes the end of a command. The fields, which docs/reference.md describes:
	//
	//	ID, Exec                         string        // of the sandbox, of the command
	//	Status                           Status        // exited, timed_out, …
	//	ExitCode                         int           // -1: no command ran
	//	Signal                           string        // "SIGTERM", …
	//	Reason                           string        // one sentence
	//	Stdout, Stderr                   []byte        // without a writer of the caller
	//	StdoutTruncated, StderrTruncated bool
	//	StdoutOmitted, StderrOmitted int64 // bytes between the head and the tail
	//	Duration, CPU                    time.Duration // of the clock, of the processor
	//	PeakMemory                       uint64        // in bytes
	//	IORead, IOWritten                int64         // in bytes; -1: not known
	//	NetworkReceived, NetworkSent     int64         // of the sandbox meanwhile; -1: not known
	//	Violations                       []Violation   // limits that were hit, refused acts
	//	Damaged                          bool          // the host's disk has lost writes
	//	Files                            *spec.Files   // the paths that changed
	//	Isolation                        Isolation     // full, shared-pid or none
	//	Limits                           LimitReport   // the limits that the host enforces
	//	Notes                            []string      // abilities that the host lacks
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
	// StatusDenied: the command made a forbidden system call and was killed for it.
	StatusDenied = spec.StatusDenied
	// StatusLost: the sandbox went away underneath it.
	StatusLost = spec.StatusLost
	// StatusError: it was never run.
	StatusError = spec.StatusError
)

// Degrees of isolation.
const (
	IsolationFull      = spec.IsolationFull
	IsolationSharedPID = spec.IsolationSharedPID // in the pid namespace of the launcher
	IsolationNone      = spec.IsolationNone
)

// The states of a sandbox.
const (
	StateRunning = spec.StateRunning
	StatePaused  = spec.StatePaused
	// StateStopped: its first process has ended, and nothing runs in it any more. It can be
	// removed, or replaced by Up.
	StateStopped = spec.StateStopped
)

// Facts about sandboxes; package spec describes them in full.
type (
	// Info describes a sandbox that exists:
	//
	//	ID, Provider     string
	//	Reused           bool         // whether Up has found the sandbox
	//	State            State
	//	From             string       // snapshot that the sandbox began with
	//	Config           Config       // with its defaults
	//	Owner            uint32       // user of the client that made the sandbox
	//	Pid              int          // of the first process
	//	Created          time.Time
	//	NetworkAddresses []netip.Addr // with NetworkFull
	//	Isolation        Isolation
	//	Limits           LimitReport
	//	Notes            []string     // for a person
	Info = spec.Info
	// State is the state of a sandbox.
	State = spec.State
	// ExecInfo describes a command that runs in a sandbox, or a detached one that has
	// ended and whose result nobody has taken yet:
	//
	//	ID              string
	//	Args            []string
	//	Pids            []int     // of its processes
	//	Started         time.Time
	//	Detached, Ended bool
	ExecInfo = spec.ExecInfo
	// Stats are the present use of a sandbox, and the most use; -1 is a value that the host cannot tell:
	//
	//	CPU                                           time.Duration
	//	Memory, MemoryPeak                            int64 // bytes
	//	Pids, PidsPeak                                int64 // processes and threads
	//	IORead, IOWritten                             int64 // bytes
	//	NetworkReceived, NetworkSent, NetworkCharged  int64 // bytes
	//	NetworkRequests, NetworkRefused               int64
	//	OOMKills, ForksRefused                        int64
	Stats = spec.Stats
	// PoolConfig bounds the pool of a launcher; zero fields are the defaults in brackets:
	//
	//	Min         int      // blanks of each kind that clients ask for [5]
	//	Max         int      // blanks at a time [50]
	//	WarmUp      int      // blanks that are made at the start [10]
	//	IdleTimeout Duration // ends blanks above Min that nobody asks for [5m]
	//	MaxAge      Duration // age at which a blank is replaced [1h]
	//	CheckEvery  Duration // time between two checks of a blank [30s]
	PoolConfig = spec.PoolConfig
	// PoolStats are the counts of a pool:
	//
	//	Config                     PoolConfig     // with its defaults
	//	Total, Ready               int            // blanks
	//	Hits                       int            // new sandboxes that claimed a blank
	//	Misses                     map[string]int // new sandboxes without a blank, by the reason
	//	AverageClaim, LongestClaim Duration
	//	Stale, Failed              int            // blanks
	//	LastError                  string         // of the last failure
	PoolStats = spec.PoolStats
	// Winsize is the size of a terminal, in characters.
	Winsize = spec.Winsize
	// Event tells one event of a sandbox.
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
