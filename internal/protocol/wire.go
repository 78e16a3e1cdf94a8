package protocol

import (
	"slices"
	"time"
	"unicode/utf8"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

const (
	// MaxRequest is the longest request, in bytes.
	MaxRequest = 4 << 20
	// MaxValues is the most JSON values that a request has: a value of three bytes can
	// take a hundred once it is decoded.
	MaxValues = 200_000
)

// A NetworkRequest changes the network of a sandbox, its sensitivity, or both.
type NetworkRequest struct {
	// Grant is nil if the network stays, as far as the sensitivity permits.
	Grant *spec.NetworkGrant `json:"grant,omitempty"`
	// Upstream is as in a [Create], for the grant.
	Upstream *spec.Upstream `json:"upstream,omitempty"`
	// Sensitivity is empty if the level stays. A level below the present one changes nothing.
	Sensitivity spec.Sensitivity `json:"sensitivity,omitempty"`
	// Named are the rules of the grant whose single address root has named for this user. The other
	// rules open no address of the host or of another sandbox. The launcher's server sets Named. For
	// root's sandboxes it has no meaning: they open what their rules name.
	Named []string `json:"-"`
}

// Control is any later frame from the client.
type Control struct {
	// Signal to send to a command, or with Tree to all that it started.
	Signal int  `json:"signal,omitempty"`
	Tree   bool `json:"tree,omitempty"`
	// End ends a command and all that it started, with its grace.
	End bool `json:"end,omitempty"`
	// Tell asks for an answer with Started once the command runs.
	Tell bool `json:"tell,omitempty"`
	// TellJoin asks for an answer with Joining once the writes of a transaction begin to join.
	TellJoin bool `json:"tell_join,omitempty"`
	// Wait asks for an answer with the Result of a detached command.
	Wait bool `json:"wait,omitempty"`
	// Abandon says that the client gives up the detached command that the call has started: it
	// does not know that the command runs.
	Abandon bool `json:"abandon,omitempty"`
	// Keep confirms a create that has made something: without it, the client did
	// not live to learn of the sandbox, and nobody else ever will.
	Keep bool `json:"keep,omitempty"`
}

// A StartRequest starts a command.
type StartRequest struct {
	Command *WireCommand `json:"command"`
	// Stdio has a bit for each of the three files that comes beside the request: the others are /dev/null.
	Stdio int `json:"stdio,omitempty"`
}

// A CommandAnswer tells of a command: that it runs, that the writes of its transaction begin to join, or its end.
type CommandAnswer struct {
	Started *Started    `json:"started,omitempty"`
	Joining bool        `json:"joining,omitempty"`
	Result  *WireResult `json:"result,omitempty"`
}

// Started tells that a command runs. Its terminal, or the two files that a
// detached one's output goes to, come beside it.
type Started struct {
	Exec string `json:"exec"`
	// Files are the kinds of the descriptors, in their order.
	Files []FileKind `json:"files,omitempty"`
}

// FileKind is the kind of a descriptor from the launcher.
type FileKind string

// The kinds of files that come with Started.
const (
	FileTerminal FileKind = "terminal"
	FileStdout   FileKind = "stdout"
	FileStderr   FileKind = "stderr"
	// FileStdoutRing and FileStderrRing are streams.LogFile with Ring. FileStdout and
	// FileStderr are those of a command that an older PID 1 has started: they have the first bytes.
	FileStdoutRing FileKind = "stdout_ring"
	FileStderrRing FileKind = "stderr_ring"
)

// WireCommand is a Command on the wire, where its strings may be any bytes: JSON
// holds only those that are UTF-8.
type WireCommand struct {
	spec.Command
	// Files asks for the program that serves the sandbox's files, in place of a command.
	// Nothing else is set then.
	Files bool `json:"files,omitempty"`
	// Raw replaces Args, Env and Cwd.
	Raw *rawCommand `json:"raw,omitempty"`
}

type rawCommand struct {
	Args [][]byte    `json:"args"`
	Env  [][2][]byte `json:"env,omitempty"`
	Cwd  []byte      `json:"cwd,omitempty"`
}

func newWireCommand(c spec.Command) *WireCommand {
	w := &WireCommand{Command: c}
	if isText(c) {
		return w
	}
	w.Raw = &rawCommand{Cwd: []byte(c.Cwd)}
	for _, arg := range c.Args {
		w.Raw.Args = append(w.Raw.Args, []byte(arg))
	}
	for name, value := range c.Env {
		w.Raw.Env = append(w.Raw.Env, [2][]byte{[]byte(name), []byte(value)})
	}
	w.Args, w.Env, w.Cwd = nil, nil, ""
	return w
}

func isText(c spec.Command) bool {
	if slices.ContainsFunc(c.Args, func(arg string) bool { return !utf8.ValidString(arg) }) {
		return false
	}
	for name, value := range c.Env {
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return false
		}
	}
	return utf8.ValidString(c.Cwd)
}

// Plain is the command as the client had it.
func (w *WireCommand) Plain() spec.Command {
	c := w.Command
	if w.Raw == nil {
		return c
	}
	c.Args, c.Env, c.Cwd = nil, map[string]string{}, string(w.Raw.Cwd)
	for _, arg := range w.Raw.Args {
		c.Args = append(c.Args, string(arg))
	}
	for _, pair := range w.Raw.Env {
		c.Env[string(pair[0])] = string(pair[1])
	}
	return c
}

// WireResult is a Result on the wire: exact, where the form for people rounds,
// and without the output, which never goes through the launcher.
type WireResult struct {
	plainResult
	Duration time.Duration `json:"duration_ns"`
	CPU      time.Duration `json:"cpu_ns"`
}

// plainResult has no MarshalJSON.
type plainResult spec.Result

// NewWireResult puts a result in the form for the wire.
func NewWireResult(r spec.Result) *WireResult {
	return &WireResult{plainResult: plainResult(r), Duration: r.Duration, CPU: r.CPU}
}

// Plain is the result.
func (w *WireResult) Plain() spec.Result {
	r := spec.Result(w.plainResult)
	r.Duration, r.CPU = w.Duration, w.CPU
	return r
}
