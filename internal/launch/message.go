package launch

import (
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

// Facts about sandboxes; package spec describes them in full.
type (
	// Info describes a sandbox that exists.
	Info = spec.Info
	// State is the state of a sandbox.
	State = spec.State
	// Command is a program to run in a sandbox.
	Command = spec.Command
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

// The states of a sandbox.
const (
	Running = spec.StateRunning
	Paused  = spec.StatePaused
	Stopped = spec.StateStopped
)

// The events.
const (
	EventCreated = spec.EventCreated
	EventRemoved = spec.EventRemoved
	EventDied    = spec.EventDied
	EventOOM     = spec.EventOOM
	EventLost    = spec.EventLost
)
