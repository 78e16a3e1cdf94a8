package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
)

// Conditions that callers decide on, with errors.Is.
var (
	// ErrNotFound: there is no sandbox, or no exec, of this id.
	ErrNotFound = fault.ErrNotFound
	// ErrExists: the name is taken.
	ErrExists = fault.ErrExists
	// ErrNotRunning: the sandbox's first process is gone.
	ErrNotRunning = fault.ErrNotRunning
	// ErrPaused: the sandbox is paused, and the request needs a running one.
	ErrPaused = fault.ErrPaused
	// ErrBusy: somebody else makes, removes or changes the sandbox just now.
	ErrBusy = fault.ErrBusy
	// ErrRefused: the launcher's rules do not allow that to this program.
	ErrRefused = fault.ErrRefused
	// ErrUnavailable: the host, the launcher or the provider cannot carry out the request.
	// The error's text names the missing part, and how to get it.
	ErrUnavailable = fault.ErrUnavailable
	// ErrDamaged: the host's disk has lost writes of the sandbox. Its files may hold
	// zeros, or older content. The error's text gives time and reason. The sandbox stays
	// damaged until it is removed.
	ErrDamaged = fault.ErrDamaged
	// ErrClosed: this program closed the Manager, the Sandbox or the Process.
	ErrClosed = errors.New("is closed")
)

// A NotRunError says that a command could not be executed. Code is the exit status of a
// shell: 126 for a file that cannot be executed, 127 for a missing one. Reason is a
// sentence that names the command. Missing is the path of the interpreter, loader or link target that
// the program lacks in the sandbox. Only [Process.Started] returns the error: all other calls have
// a [Result] that says so.
type NotRunError = fault.NotRunError

// A ConfigError says in its Reason why a request makes no sense: a command without a
// program, a forbidden path. A mistake in a single field of a Config is a [*FieldError].
type ConfigError = fault.ConfigError

// An Error is about one sandbox.
type Error struct {
	// ID of the sandbox, or the name that was asked for.
	ID string
	// Err is the cause.
	Err error
}

// Error is a sentence with the sandbox's id and, where there is one, the way
// out.
func (e *Error) Error() string {
	for _, c := range conditions {
		if e.Err.Error() == c.err.Error() {
			return fmt.Sprintf("sandbox %s %v%s", e.name(), e.Err, c.wayOut)
		}
	}
	return fmt.Sprintf("sandbox %s: %v", e.name(), e.Err)
}

// name shows that an id is empty.
func (e *Error) name() string { return cmp.Or(e.ID, `""`) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// conditions continue a sentence that begins with a sandbox.
var conditions = []struct {
	err    error
	wayOut string
}{
	{ErrNotFound, ": it was removed, or never made"},
	{ErrExists, ": choose another name, reuse that sandbox, or remove it first"},
	{ErrNotRunning, ": its processes were killed; apply or save its changes, then remove it, or replace it with up"},
	{ErrPaused, ": resume it first"},
	{ErrBusy, ": try again when that is done"},
	{errRemoved, ": its writes that were not applied or saved are lost"},
	{ErrRefused, ""},
	{ErrUnavailable, ""},
	{ErrClosed, ": make another, or get it by its id if it was not removed"},
}

// errRemoved is ErrNotFound for a sandbox that was there a moment ago.
var errRemoved error = removedError{}

type removedError struct{}

func (removedError) Error() string        { return "was removed meanwhile" }
func (removedError) Is(target error) bool { return target == ErrNotFound }

// errorAbout adds the sandbox's id to an error that does not have it.
func errorAbout(id string, err error) error {
	var known *Error
	var remote *fault.SandboxError
	var config *ConfigError
	var field *FieldError
	switch {
	case err == nil, id == "", errors.As(err, &known), errors.As(err, &config), errors.As(err, &field):
		return err
	case errors.As(err, &remote):
		if err == error(remote) { // nothing else is in it
			return &Error{remote.ID, remote.Err}
		}
		return &Error{remote.ID, &causes{remote.Err, err}} // err can have other causes beside
	}
	return &Error{id, err}
}

// endedBy adds the end of a context to the error of a call that this end has caused: the error then matches both.
func endedBy(ctx context.Context, err error) error {
	end := ctx.Err()
	if err == nil || end == nil || errors.Is(err, end) {
		return err
	}
	return &causes{err, end}
}

// causes are an error with the text of the first one, which also matches the second one.
type causes struct{ first, second error }

func (c *causes) Error() string   { return c.first.Error() }
func (c *causes) Unwrap() []error { return []error{c.first, c.second} }
