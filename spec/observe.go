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
	// NetworkReceived and NetworkSent are bytes from the start of the sandbox: of NetworkFull with
	// headers and refused packets, of NetworkProxied without. NetworkCharged are those that a quota
	// of the network counts.
	NetworkReceived int64 `json:"network_received_bytes"`
	NetworkSent     int64 `json:"network_sent_bytes"`
	NetworkCharged  int64 `json:"network_charged_bytes"`
	// NetworkRequests are the connections and requests of NetworkProxied, as a limit counts them.
	// NetworkRefused are the connections, requests and names that it has refused.
	NetworkRequests int64 `json:"network_requests"`
	NetworkRefused  int64 `json:"network_refused"`
	// OOMKills and ForksRefused count from the start of the sandbox.
	OOMKills     int64 `json:"oom_kills"`
	ForksRefused int64 `json:"forks_refused"`
}

// Traffic is the use of the network by a sandbox since its start. Received and Sent are bytes, and
// Charged are those that a quota counts. Requests are those that a limit of NetworkProxied counts, and
// Refused are the connections, requests and names that NetworkProxied has refused.
type Traffic struct{ Received, Sent, Charged, Requests, Refused int64 }

// A NetworkEvent is one decision of NetworkProxied about a name, a connection or a request. A connection has
// its event at its end.
type NetworkEvent struct {
	Time time.Time `json:"time"`
	// Name is empty for a connection to an address.
	Name string `json:"name,omitempty"`
	// Address is the server's, if the connection had one.
	Address string `json:"address,omitempty"`
	// Port is zero for a lookup of a name.
	Port uint16 `json:"port,omitempty"`
	// Sent and Received are bytes, as the sandbox sees them.
	Sent     int64 `json:"sent"`
	Received int64 `json:"received"`
	// Rule is the one that has decided. It is empty if no rule has.
	Rule string `json:"rule,omitempty"`
	// Decision is NetworkAllowed, NetworkDenied or NetworkFailed.
	Decision string `json:"decision"`
	// Reason is one sentence for a person or a model.
	Reason string `json:"reason,omitempty"`
	// Upstream is the upstream proxy that was asked, without its password. It is empty for a direct connection.
	Upstream string `json:"upstream,omitempty"`
}

// The decisions of a NetworkEvent. NetworkFailed is an allowed connection that did not reach the server.
const (
	NetworkAllowed = "allowed"
	NetworkDenied  = "denied"
	NetworkFailed  = "failed"
)

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
