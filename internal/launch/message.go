package launch

import (
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Create asks for a sandbox.
type Create struct {
	// Name becomes its id; empty: one that is unique on the host is made up.
	Name string `json:"name,omitempty"`
	// Reuse takes the sandbox of that name if it is up and healthy, and
	// replaces it if it is not. Without it, a name that is taken is an error.
	Reuse  bool        `json:"reuse,omitempty"`
	Config spec.Config `json:"config"`
	// From is the snapshot whose files it begins with.
	From string `json:"from,omitempty"`
	// Tied ends the sandbox with the connection that asked for it, for the one command of
	// "do". Without it the sandbox stays until it is removed, also if client and launcher
	// die.
	Tied bool `json:"tied,omitempty"`
	// Path and Home are of the caller's environment: the language interpreters
	// that Path leads to are shown in a sandbox with the host's own root.
	Path string `json:"path,omitempty"`
	Home string `json:"home,omitempty"`
}

// Beginning is the part of a snapshot's configuration that a fork takes over.
type Beginning struct {
	Overlays []string `json:"overlays,omitempty"`
	Cwd      string   `json:"cwd,omitempty"`
}

// Resolve has a request that names no overlays take over the beginning.
func (b Beginning) Resolve(c *spec.Config) {
	if len(c.Overlays) > 0 {
		return
	}
	c.Overlays = b.Overlays
	if c.Cwd == "" {
		c.Cwd = b.Cwd
	}
}

// Info describes a sandbox that exists.
type Info struct {
	ID string `json:"id"`
	// Reused says that Create found it up.
	Reused bool   `json:"reused,omitempty"`
	Status Status `json:"status"`
	// From is the snapshot whose files it has begun with.
	From   string      `json:"from,omitempty"`
	Config spec.Config `json:"config"`
	// Owner is the user that asked for it, and the only one besides root that
	// may use it.
	Owner uint32 `json:"owner"`
	// Pid of the sandbox's PID 1 on the host, 0 where there is none.
	Pid     int              `json:"pid"`
	Created time.Time        `json:"created"`
	Limits  spec.LimitReport `json:"limits"`
	// Notes name abilities that the host lacks, and the replacements.
	Notes []string `json:"notes,omitempty"`
}

// Status is the state of a sandbox.
type Status string

// The states of a sandbox.
const (
	Running Status = "running"
	Paused  Status = "paused"
	// Stopped: its PID 1 has ended. The rest can be removed, or replaced by a Create with
	// Reuse.
	Stopped Status = "stopped"
)

// Command is a program to run in a sandbox. Its files come beside it.
type Command struct {
	// Args are the program, looked up on the sandbox's PATH, and its
	// arguments.
	Args []string `json:"args"`
	// Files has the launcher run the program that it brings along to serve the
	// sandbox's files, on its standard input and output, as the sandbox's user
	// and without a timeout. Nothing else is set then.
	Files bool `json:"files,omitempty"`
	// Env is added to the sandbox's environment and wins over it.
	Env map[string]string `json:"env,omitempty"`
	// Cwd is where it starts; empty: the configuration's.
	Cwd string `json:"cwd,omitempty"`
	// User runs it; nil: the configuration's.
	User *spec.User `json:"user,omitempty"`
	// Groups are supplementary groups.
	Groups []uint32 `json:"groups,omitempty"`
	// Limits bound this command alone, within the sandbox's; zero fields add
	// nothing to those.
	Limits spec.Limits `json:"limits,omitzero"`
	// Timeout ends the command and all it started; 0 takes the
	// configuration's, where 0 means none.
	Timeout spec.Duration `json:"timeout,omitzero"`
	// Terminal gives it a terminal of this size in place of the three files.
	Terminal *Winsize `json:"terminal,omitempty"`
	// Detached lets it go on when the connection ends. Its output is kept by
	// the sandbox, the first OutputLimit bytes of each stream.
	Detached    bool  `json:"detached,omitempty"`
	OutputLimit int64 `json:"output_limit,omitempty"`
	// NoFiles leaves the files out of the Result.
	NoFiles bool `json:"no_files,omitempty"`
	// Transaction has the command's writes join the sandbox's files when it succeeds, with
	// exit code 0, and vanish otherwise. Other commands do not see the writes before. /tmp
	// is not part of a transaction.
	Transaction bool `json:"transaction,omitempty"`
}

// Facts about sandboxes; package spec describes them in full.
type (
	// Exec describes a command of a sandbox.
	Exec = spec.ExecInfo
	// Stats are the present use of a sandbox, and the most use.
	Stats = spec.Stats
	// Winsize is the size of a terminal.
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
	EventDied    = spec.EventDied
	EventOOM     = spec.EventOOM
	EventLost    = spec.EventLost
)
