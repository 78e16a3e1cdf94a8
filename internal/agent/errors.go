package agent

import (
	"errors"
	"fmt"
	"syscall"
)

// ErrGone means that the agent's end of a socket is closed: the agent has died,
// or its sandbox was destroyed, and how a command ended will not be known.
var ErrGone = errors.New("the sandbox's agent is gone")

// StartError is a command that did not start, with the sandbox in good order.
type StartError struct {
	Stage Stage
	Errno syscall.Errno
	// Path is what the stage was about, as the caller named it: the program,
	// the directory, the terminal's device. Empty for other stages.
	Path string
}

func (e *StartError) Error() string {
	if e.Path == "" {
		return fmt.Sprintf("%s: %v", e.Stage, e.Errno)
	}
	return fmt.Sprintf("%s %q: %v", e.Stage, e.Path, e.Errno)
}

// Unwrap gives the errno, so that errors.Is(err, fs.ErrNotExist) and the like
// hold.
func (e *StartError) Unwrap() error { return e.Errno }

// NotFound tells whether the program does not exist, which shells report as
// status 127. A script whose interpreter does not exist is such a program.
func (e *StartError) NotFound() bool {
	return e.Stage == StageExec && e.Errno == syscall.ENOENT
}

// NotExecutable tells whether the program exists and cannot be executed, which
// shells report as status 126. A lack of memory or of processes is neither.
func (e *StartError) NotExecutable() bool {
	if e.Stage != StageExec {
		return false
	}
	switch e.Errno {
	case syscall.ENOENT, syscall.EAGAIN, syscall.ENOMEM, syscall.ENFILE:
		return false
	default:
		return true
	}
}
