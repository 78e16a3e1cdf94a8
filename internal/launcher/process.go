package launcher

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/agent"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// captureLimit is how much of each output stream a Result keeps, in bytes.
const captureLimit = 8 << 20

// A Command is what to run in a sandbox.
type Command struct {
	// Args are the program, looked up on the sandbox's PATH, and its
	// arguments.
	Args []string
	// Streams are its standard streams.
	Streams
	// Terminal gives it a terminal of this size for all three streams; what
	// it writes goes to Stdout.
	Terminal *agent.Winsize
	// Capture puts the output in the Result, up to a bound; Stdout and Stderr
	// are then nil.
	Capture bool
}

// A NotRunError says that the command could not be executed.
type NotRunError struct {
	// Code is what a shell's exit status would be: 126 for what is there but
	// can't be executed, 127 for what is not there.
	Code int
	Err  error
}

func (e *NotRunError) Error() string { return e.Err.Error() }
func (e *NotRunError) Unwrap() error { return e.Err }

// A Process is the command of a sandbox, running or over.
type Process struct {
	sandbox        *Sandbox
	inside         *agent.Process
	stdio          *stdio
	stdout, stderr *capture
	started        time.Time
}

// Start runs the command. A sandbox has one.
//
// Errors: *[NotRunError] when it can't be executed.
func (s *Sandbox) Start(ctx context.Context, c Command) (_ *Process, err error) {
	p := &Process{sandbox: s}
	if c.Capture {
		p.stdout, p.stderr = &capture{limit: captureLimit}, &capture{limit: captureLimit}
		c.Stdout, c.Stderr = p.stdout, p.stderr
	}
	request, err := s.request(c)
	if err != nil {
		return nil, err
	}
	if c.Terminal == nil {
		p.stdio, err = openStdio(c.Streams,
			hostID(s.root.UIDMappings(), s.config.User.UID), hostID(s.root.GIDMappings(), s.config.User.GID))
		if err != nil {
			return nil, err
		}
		request.Stdin, request.Stdout, request.Stderr = p.stdio.inside[0], p.stdio.inside[1], p.stdio.inside[2]
	}
	p.started = time.Now()
	p.inside, err = s.agent.Start(ctx, request)
	if p.stdio != nil {
		p.stdio.closeInside()
	}
	if err != nil {
		return nil, errors.Join(s.notRun(c.Args[0], err), p.abandon())
	}
	if c.Terminal != nil {
		p.stdio = joinTerminal(c.Streams, p.inside.Terminal())
	}
	return p, nil
}

// request is the command as PID 1 is told it.
func (s *Sandbox) request(c Command) (agent.Command, error) {
	rlimits, err := commandLimits(s.config)
	return agent.Command{
		Args:        c.Args,
		Env:         s.config.Environ(s.languages.Path...),
		Dir:         s.config.Cwd,
		UID:         s.config.User.UID,
		GID:         s.config.User.GID,
		Rlimits:     rlimits,
		TTY:         c.Terminal,
		OOMScoreAdj: commandOOMScore,
	}, err
}

// commandOOMScore makes the kernel choose a command before PID 1, and before
// the host's own processes, when memory runs out.
const commandOOMScore = 500

// notRun words the failure of a start that the command is to blame for.
func (s *Sandbox) notRun(name string, err error) error {
	var start *agent.StartError
	switch {
	case !errors.As(err, &start):
		return err
	case start.NotFound():
		what := name + ": not found in the sandbox"
		for _, note := range s.languages.Notes {
			if strings.Contains(note, "/"+name+" ") {
				what += "; " + note
			}
		}
		return &NotRunError{Code: spec.ExitNotFound, Err: errors.New(what)}
	case start.NotExecutable():
		return &NotRunError{Code: spec.ExitNotExecutable, Err: fmt.Errorf("%s: not executable in the sandbox: %w", name, start.Errno)}
	}
	return err
}

// Signal sends a signal to the command's process group, as a terminal does.
func (p *Process) Signal(sig syscall.Signal) error { return p.inside.SignalGroup(sig) }

// Resize tells the command's terminal, if it has one, its size.
func (p *Process) Resize(size agent.Winsize) error {
	tty := p.inside.Terminal()
	if tty == nil {
		return nil
	}
	// Not by tty.Fd(), which takes the file from the poller.
	raw, err := tty.SyscallConn()
	if err != nil {
		return err
	}
	var setErr error
	err = raw.Control(func(fd uintptr) {
		setErr = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Columns})
	})
	return errors.Join(err, setErr)
}

// Wait returns what became of the command, once it and all it started is gone:
// when it has ended, when its timeout has passed, or when ctx is done, which
// kills it. An error says that the sandbox failed.
func (p *Process) Wait(ctx context.Context) (spec.Result, error) {
	s := p.sandbox
	waiting, cancel := ctx, context.CancelFunc(func() {})
	if s.config.Timeout > 0 {
		waiting, cancel = context.WithDeadline(ctx, p.started.Add(time.Duration(s.config.Timeout)))
	}
	exit, err := p.inside.Wait(waiting)
	cancel()
	end := ending{
		status: exit.Status, known: err == nil,
		cancelled: err != nil && ctx.Err() != nil,
		timedOut:  err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded),
	}
	if err != nil && !end.cancelled && !end.timedOut && !errors.Is(err, agent.ErrGone) {
		return spec.Result{}, errors.Join(fmt.Errorf("wait for the command: %w", err), p.abandon())
	}
	r := spec.Result{ID: s.id, Duration: time.Since(p.started), Isolation: spec.IsolationFull, Notes: s.root.Notes()}
	err = p.finish(ctx, &r, end)
	return r, err
}

// outputTime is how long the caller has to take the output of a command that
// was made to end, or that is given up.
const outputTime = 2 * time.Second

// finish kills what is left, collects the output and the cgroup's counters. Of
// a command that ended by itself the caller takes the output at its leisure,
// until ctx is done.
func (p *Process) finish(ctx context.Context, r *spec.Result, end ending) error {
	s := p.sandbox
	if err := s.kill(); err != nil {
		return errors.Join(err, p.inside.Close())
	}
	if end.timedOut || end.cancelled {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), outputTime)
		defer cancel()
	}
	err := p.stdio.wait(ctx)
	if errors.Is(err, errNotTaken) {
		r.Notes = append(r.Notes, err.Error())
		err = nil
	}
	if err := errors.Join(err, p.inside.Close()); err != nil {
		return fmt.Errorf("copy the command's output: %w", err)
	}
	if p.stdout != nil {
		r.Stdout, r.StdoutTruncated = p.stdout.kept, p.stdout.truncated
		r.Stderr, r.StderrTruncated = p.stderr.kept, p.stderr.truncated
	}
	return s.account(r, end)
}

// abandon kills the sandbox of a command that is not going to be waited for.
func (p *Process) abandon() error {
	err := p.sandbox.kill()
	if p.stdio != nil {
		ctx, cancel := context.WithTimeout(context.Background(), outputTime)
		defer cancel()
		err = errors.Join(err, p.stdio.wait(ctx))
	}
	return err
}

// account fills in what the cgroup knows.
func (s *Sandbox) account(r *spec.Result, end ending) error {
	stats, err := s.group.Stats()
	if err != nil {
		return err
	}
	events, err := s.group.Events()
	if err != nil {
		return err
	}
	r.CPU, r.PeakMemory = max(stats.CPU, 0), uint64(max(stats.MemoryPeak, 0))
	end.oomKills, end.forksRefused = events.OOMKills, events.PidsLimitHits
	end.describe(r, s.config)
	r.Limits = s.limits
	return nil
}
