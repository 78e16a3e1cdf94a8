package spec

import (
	"net/netip"
	"time"
)

// Info describes a sandbox that exists.
type Info struct {
	ID string `json:"id"`
	// Provider that made it.
	Provider string `json:"provider,omitempty"`
	// Reused says that the sandbox was up before the call that asked for it.
	Reused bool  `json:"reused,omitempty"`
	State  State `json:"status"`
	// From is the snapshot that it has begun with, which may be gone.
	From string `json:"from,omitempty"`
	// Config is the configuration of the sandbox, with every default filled in.
	Config Config `json:"config"`
	// Owner is the user that asked for it, and the only one besides root that may use it.
	Owner uint32 `json:"owner"`
	// Pid of its first process on the host, 0 where there is none.
	Pid     int       `json:"pid"`
	Created time.Time `json:"created"`
	// NetworkAddresses are the addresses of a sandbox with NetworkFull, IPv4 first. Another sandbox
	// can get them later.
	NetworkAddresses []netip.Addr `json:"network_addresses,omitempty"`
	// Isolation of the commands that run in it.
	Isolation Isolation   `json:"isolation,omitempty"`
	Limits    LimitReport `json:"limits"`
	// Notes name abilities that the host lacks, and the replacements.
	Notes []string `json:"notes,omitempty"`
}

// State is the state of a sandbox.
type State string

// The states of a sandbox.
const (
	StateRunning State = "running"
	StatePaused  State = "paused"
	// StateStopped: its first process has ended, and nothing runs in it any more. It can be
	// removed or replaced.
	StateStopped State = "stopped"
)

// ExecInfo describes a command that runs in a sandbox, or a detached one that has ended
// and whose result nobody has taken yet.
type ExecInfo struct {
	ID       string    `json:"id"`
	Args     []string  `json:"args,omitempty"`
	Pids     []int     `json:"pids,omitempty"` // on the host
	Started  time.Time `json:"started"`
	Detached bool      `json:"detached"`
	Ended    bool      `json:"ended,omitempty"`
}

// Stats are the present use of a sandbox, and the most use. A field is -1 if the host
// cannot tell.
type Stats struct {
	CPU time.Duration `json:"cpu_ns"`
	// Memory and MemoryPeak are in bytes, with the files of the sandbox's tmpfs.
	Memory     int64 `json:"memory_bytes"`
	MemoryPeak int64 `json:"memory_peak_bytes"`
	// Pids and PidsPeak count processes and threads.
	Pids     int64 `json:"pids"`
	PidsPeak int64 `json:"pids_peak"`
	// IORead and IOWritten are bytes of disk traffic.
	IORead    int64 `json:"io_read_bytes"`
	IOWritten int64 `json:"io_written_bytes"`
	// NetworkReceived and NetworkSent are bytes of NetworkFull, with headers and refused packets,
	// from the start of the sandbox. NetworkCharged are those that a quota of the network counts.
	NetworkReceived int64 `json:"network_received_bytes"`
	NetworkSent     int64 `json:"network_sent_bytes"`
	NetworkCharged  int64 `json:"network_charged_bytes"`
	// OOMKills and ForksRefused count from the start of the sandbox.
	OOMKills     int64 `json:"oom_kills"`
	ForksRefused int64 `json:"forks_refused"`
}

// Traffic is the use of NetworkFull by a sandbox since its start, in bytes. Charged are those that
// a quota of the network counts.
type Traffic struct{ Received, Sent, Charged int64 }

// Winsize is the size of a terminal, in characters.
type Winsize struct {
	Rows    uint16 `json:"rows"`
	Columns uint16 `json:"columns"`
}

// Event tells one event of a sandbox.
type Event struct {
	Type EventType `json:"type"`
	// ID of the sandbox.
	ID   string    `json:"id,omitempty"`
	Time time.Time `json:"time"`
	// Lost counts the events that a slow receiver did not get, in an event of type EventLost.
	Lost int `json:"lost,omitempty"`
}

// EventType is the kind of an event.
type EventType string

// The events.
const (
	EventCreated EventType = "created"
	EventRemoved EventType = "removed"
	// EventDied: PID 1 has ended, the rest of the sandbox is still there.
	EventDied EventType = "died"
	// EventOOM: the kernel has killed a process at the memory limit.
	EventOOM EventType = "oom"
	// EventLost: there were more events than the receiver took.
	EventLost EventType = "lost"
)
