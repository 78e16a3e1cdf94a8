package agent

import (
	"errors"
	"fmt"
	"io"
	"syscall"
)

// ErrGone means that the agent's end of a socket is closed: the agent has died,
// or its sandbox was destroyed, and how a command ended will not be known.
var ErrGone = errors.New("the sandbox's agent is gone")

// asGone replaces the end of a socket with ErrGone.
func asGone(err error) error {
	if errors.Is(err, io.EOF) {
		return ErrGone
	}
	return err
}

// ErrNoExec means that the agent keeps no detached command of that id.
var ErrNoExec = errors.New("the sandbox has no such detached command")

// VersionError is an agent that speaks no version of the protocol that is
// understood here. Its sandbox can still be removed.
type VersionError struct {
	Agent, Oldest, Newest int
}

func (e *VersionError) Error() string {
	way := "make the sandbox anew"
	if e.Agent > e.Newest {
		way = "use the newer sandbox-runtime that made it, or make it anew"
	}
	return fmt.Sprintf("the agent of the sandbox speaks version %d of the protocol, this sandbox-runtime %d to %d: %s",
		e.Agent, e.Oldest, e.Newest, way)
}

// StartError is a command that did not start, with the sandbox in good order.
type StartError struct {
	Stage Stage
	Errno syscall.Errno
	// Path is the object of the stage, in the caller's words: the program, the directory,
	// the terminal's device. Empty for other stages.
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
