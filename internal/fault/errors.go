package fault

import (
	"errors"
	"fmt"
)

// Conditions that callers decide on. They cross the socket: a client's error
// matches the one that the launcher had.
var (
	// ErrNotFound: no sandbox, or no exec, has this id.
	ErrNotFound = errors.New("does not exist")
	// ErrExists: the name is taken.
	ErrExists = errors.New("exists already")
	// ErrNotRunning: the sandbox's PID 1 is gone.
	ErrNotRunning = errors.New("is not running")
	// ErrPaused: the sandbox is paused, and the request needs a running one.
	ErrPaused = errors.New("is paused")
	// ErrBusy: something else makes, removes, changes or uses it just now.
	ErrBusy = errors.New("is in use")
	// ErrRefused: the launcher's rules do not allow that to this client.
	ErrRefused = errors.New("refused by the launcher's rules")
	// ErrUnavailable: the host, or the launcher, cannot carry out the request.
	ErrUnavailable = errors.New("is not available")
	// ErrDamaged: the host's disk has lost writes of the sandbox.
	ErrDamaged = errors.New("has files that cannot be trusted")
)

// A NotRunError says that a command could not be executed.
type NotRunError struct {
	// Code is the exit status of a shell: 126 for a file that cannot be executed, 127 for
	// a missing one.
	Code int
	// Reason names the command and the problem.
	Reason string
	// Missing is a path in the sandbox: the interpreter, loader or link target that the program lacks. It is
	// empty if the program itself is missing.
	Missing string
}

func (e *NotRunError) Error() string { return e.Reason }

// A ConfigError says why a request makes no sense: a field, a forbidden path, a command
// without a program.
type ConfigError struct{ Reason string }

func (e *ConfigError) Error() string { return e.Reason }

// A SandboxError is an error about one sandbox.
type SandboxError struct {
	ID  string
	Err error
}

func (e *SandboxError) Error() string { return fmt.Sprintf("sandbox %s %v", e.ID, e.Err) }
func (e *SandboxError) Unwrap() error { return e.Err }
