package jobs

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/agent"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/mountns"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// refused returns the error for the caller after the agent could not execute a command.
func (p *Process) refused(start *agent.StartError) error {
	name := p.Args[0]
	switch {
	case start.NotFound():
		return p.notFound(name)
	case start.NotExecutable():
		return &fault.NotRunError{Code: spec.ExitNotExecutable, Reason: p.notExecutable(start.Errno)}
	case start.Stage == agent.StageDirectory:
		return &fault.ConfigError{Reason: fmt.Sprintf("directory %s of the command: %v in the sandbox", start.Path, start.Errno)}
	case start.Errno == unix.EAGAIN || start.Errno == unix.ENOMEM:
		return &fault.SandboxError{ID: p.Live.ID,
			Err: fmt.Errorf("has no room for more processes, so another command %w: %w; end some of its processes", fault.ErrUnavailable, start)}
	}
	return &fault.SandboxError{ID: p.Live.ID, Err: fmt.Errorf("cannot start the command: %w", start)}
}

// notFound is the error for a missing program, and for a program that needs a missing file.
func (p *Process) notFound(name string) *fault.NotRunError {
	refusal := &fault.NotRunError{Code: spec.ExitNotFound}
	if missing, found := p.missing(); found {
		refusal.Reason, refusal.Missing = name+": "+missing.Reason("in the sandbox"), missing.File
		return refusal
	}
	refusal.Reason = process.Hinted(name+": not found in the sandbox", p.Args)
	for _, note := range p.Config.PathNotes {
		if strings.Contains(note, "/"+name+" ") {
			refusal.Reason += "; " + note
		}
	}
	return refusal
}

// notExecutable is the reason why a file that exists was not executed.
func (p *Process) notExecutable(errno unix.Errno) string {
	reason := fmt.Sprintf("%s: not executable in the sandbox: %v", p.Args[0], errno)
	hint := ""
	if errno == unix.ENOEXEC {
		p.inView(func(root *os.File) { hint = process.FormatHint(root, p.call) })
	}
	if hint != "" {
		return reason + "; " + hint
	}
	return process.Hinted(reason, p.Args)
}

// missing finds the file that the program needs.
func (p *Process) missing() (missing process.MissingFile, found bool) {
	p.inView(func(root *os.File) { missing, found = process.FindMissing(root, p.call) })
	return missing, found
}

// inView calls look with the root that the command has, if there is one.
func (p *Process) inView(look func(root *os.File)) {
	if p.Transaction != nil {
		look(p.Transaction.Root())
		return
	}
	thread, err := mountns.Enter(p.Config.Init)
	if err != nil {
		return
	}
	defer thread.Stop()
	var root *os.File
	if thread.Do(func() (err error) { root, err = mountns.Open("/"); return err }) != nil {
		return
	}
	defer root.Close()
	look(root)
}

// callOf is the execution that the agent tries for a request.
func callOf(request agent.Command) process.Call {
	call := process.Call{Name: request.Args[0], Dir: request.Dir, Path: "/bin:/usr/bin"} // as path_of in child.c
	for _, variable := range request.Env {
		if value, ok := strings.CutPrefix(variable, "PATH="); ok {
			call.Path = value
			break
		}
	}
	return call
}
