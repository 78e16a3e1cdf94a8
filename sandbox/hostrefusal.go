package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// notRun is the error of a command that could not be executed.
func (c hostCommand) notRun(err error) *fault.NotRunError {
	name := c.Args[0]
	if !errors.Is(err, exec.ErrNotFound) && !errors.Is(err, os.ErrNotExist) {
		return &fault.NotRunError{Code: spec.ExitNotExecutable, Reason: process.Hinted(fmt.Sprintf("%s: not executable: %v", name, err), c.Args)}
	}
	reason := process.Hinted(name+": not found", c.Args)
	if missing, found := c.missing(); found {
		reason = name + ": " + missing.Reason("on this host")
	}
	return &fault.NotRunError{Code: spec.ExitNotFound, Reason: reason}
}

// missing finds the file that the program needs.
func (c hostCommand) missing() (process.MissingFile, bool) {
	root, err := descriptor.OpenFile(unix.AT_FDCWD, "/", 0, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return process.MissingFile{}, false
	}
	defer root.Close()
	dir := c.Dir
	if dir == "" {
		if dir, err = os.Getwd(); err != nil {
			return process.MissingFile{}, false
		}
	}
	return process.FindMissing(root, process.Call{Name: c.Args[0], Dir: dir, Path: os.Getenv("PATH")})
}
