package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/urfave/cli/v3"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/agent"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// grace is how long a command may take to end by itself after a signal that
// should end it.
const grace = 5 * time.Second

// doSandboxed makes the sandbox, runs the command and removes the sandbox, also
// when a signal comes in between.
func doSandboxed(ctx context.Context, cmd *cli.Command, l *launcher.Launcher, config spec.Config) (_ spec.Result, err error) {
	go cgroups.Wake() // ends by itself
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	signals := relaySignals(cancel)
	defer signals.stop()

	sandbox, err := l.Create(ctx, config, launcher.Caller{Path: os.Getenv("PATH"), Home: os.Getenv("HOME")})
	if err != nil {
		return spec.Result{}, causeOf(ctx, err)
	}
	defer func() { err = errors.Join(err, sandbox.Close()) }()

	command, restore, err := doStreams(cmd)
	if err != nil {
		return spec.Result{ID: sandbox.ID()}, err
	}
	defer restore()
	signals.starting()
	process, err := sandbox.Start(ctx, command)
	if err != nil {
		return spec.Result{ID: sandbox.ID()}, causeOf(ctx, err)
	}
	signals.to(process)
	return process.Wait(ctx)
}

// causeOf prefers why the context was cancelled to what failed because of it.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// doStreams connects the command with this program's standard streams. restore
// gives the terminal back.
func doStreams(cmd *cli.Command) (c launcher.Command, restore func(), err error) {
	c = launcher.Command{Args: cmd.Args().Slice(), Capture: cmd.Bool("json")}
	if cmd.Bool("interactive") {
		c.Stdin = os.Stdin
	}
	if !c.Capture {
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
	}
	if !cmd.Bool("tty") {
		return c, func() {}, nil
	}
	size := terminalSize()
	c.Terminal = &size
	return rawInput(c)
}

// rawInput hands every key to the command, ^C included, if it gets input.
func rawInput(c launcher.Command) (launcher.Command, func(), error) {
	stdin := int(os.Stdin.Fd())
	if c.Stdin == nil || !term.IsTerminal(stdin) {
		return c, func() {}, nil
	}
	state, err := term.MakeRaw(stdin)
	if err != nil {
		return c, nil, err
	}
	return c, func() { _ = term.Restore(stdin, state) }, nil // the terminal may be gone
}

// terminalSize is that of the terminal this program is on, or a usual one.
func terminalSize() agent.Winsize {
	for _, f := range []*os.File{os.Stdout, os.Stdin, os.Stderr} {
		if cols, rows, err := term.GetSize(int(f.Fd())); err == nil {
			return agent.Winsize{Rows: uint16(rows), Columns: uint16(cols)}
		}
	}
	return agent.Winsize{Rows: 24, Columns: 80}
}

// signaled is a *launcher.Process.
type signaled interface {
	Signal(sig syscall.Signal) error
	Resize(size agent.Winsize) error
}

// A signalRelay sends the signals that end a program to the command, and ends
// the sandbox where that does not help.
type signalRelay struct {
	cancel  context.CancelCauseFunc
	signals chan os.Signal
	done    sync.WaitGroup

	mu sync.Mutex
	// process is nil until the command is known to run, which it may do, and
	// print, before that.
	process signaled
	starts  bool
	waiting syscall.Signal // for process; 0: none
	asked   bool
}

func relaySignals(cancel context.CancelCauseFunc) *signalRelay {
	r := &signalRelay{cancel: cancel, signals: make(chan os.Signal, 16)}
	for _, s := range []syscall.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGWINCH, unix.SIGPIPE} {
		if !signal.Ignored(s) { // as by nohup
			signal.Notify(r.signals, s)
		}
	}
	r.done.Go(func() {
		for s := range r.signals {
			r.handle(s.(syscall.Signal))
		}
	})
	return r
}

func (r *signalRelay) stop() {
	signal.Stop(r.signals)
	close(r.signals)
	r.done.Wait()
}

// starting says that the command is about to run: signals before that end the
// whole, one from here on waits for the command.
func (r *signalRelay) starting() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.starts = true
}

// to names the command.
func (r *signalRelay) to(p signaled) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.process = p
	if r.waiting != 0 {
		_ = p.Signal(r.waiting) // it may just have ended
	}
}

func (r *signalRelay) handle(s syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case s == unix.SIGPIPE:
		// Whoever read the output has had enough; the copying sees it too.
	case s == unix.SIGWINCH:
		if r.process != nil {
			_ = r.process.Resize(terminalSize()) // it may just have ended
		}
	case !r.starts || r.asked:
		r.cancel(errors.New("interrupted by " + unix.SignalName(s)))
	default:
		r.asked = true
		if r.process == nil {
			r.waiting = s
		} else {
			_ = r.process.Signal(s) // it may just have ended
		}
		time.AfterFunc(grace, func() { r.cancel(errors.New("the command did not end on " + unix.SignalName(s))) })
	}
}
