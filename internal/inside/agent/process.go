package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"
)

// Process is a command that was begun. Its methods may be called from several
// goroutines.
type Process struct {
	conn      *Conn
	name, dir string
	tty       bool
	detached  bool // its end is not this Process's
	id        ExecID

	// starting is held by the one that reads from setup, and guards terminal,
	// settled and failure.
	starting *semaphore.Weighted
	setup    *socket
	terminal *os.File
	settled  bool  // all was read
	failure  error // why it did not start

	// waiting is held by the goroutine that reads from exec, and guards the fields below.
	waiting *semaphore.Weighted
	exec    *socket
	ended   bool // exit is set
	drained bool
	exit    Exit
	err     error // nothing more will be known

	// done is ended, for those that do not wait.
	done atomic.Bool
}

func newProcess(c *Conn, name string) *Process {
	return &Process{conn: c, name: name, starting: semaphore.NewWeighted(1), waiting: semaphore.NewWeighted(1)}
}

// RefusedCalls is a set of calls that a filter has refused. The agent reports only these.
type RefusedCalls uint32

// The kinds of refused calls.
const (
	RefusedTrace     RefusedCalls = 1  // ptrace, process_vm_readv, process_vm_writev, kcmp, pidfd_getfd
	RefusedPerf      RefusedCalls = 2  // perf_event_open
	RefusedBPF       RefusedCalls = 4  // bpf
	RefusedNamespace RefusedCalls = 8  // clone with a new namespace, unshare, setns
	RefusedMount     RefusedCalls = 16 // mount, umount2

	allRefused = RefusedTrace | RefusedPerf | RefusedBPF | RefusedNamespace | RefusedMount
)

// Exit is how a command ended, by the agent's word.
type Exit struct {
	// Status is either Exited or Signaled.
	Status syscall.WaitStatus
	// UserTime, SystemTime and MaxRSS, in bytes, count the command and those
	// of its descendants that were waited for.
	UserTime, SystemTime time.Duration
	MaxRSS               int64
	// Refused are calls that the sandbox's filter has refused to the command and its
	// descendants, as far as they have stayed in its session.
	Refused RefusedCalls
	// Ended is when, to the millisecond, of a detached command. It is zero of
	// others, which tell their end as it comes, and where the agent did not say.
	Ended time.Time
}

// subject is the object of a stage, in the caller's words.
func (p *Process) subject(s Stage) string {
	switch s {
	case StageExec:
		return p.name
	case StageDirectory:
		return p.dir
	case StageTerminal:
		return "/dev/ptmx"
	case StageID:
		return p.id.String()
	default:
		return ""
	}
}

// Started waits until the command has been executed. The error is a *StartError
// where it was not; after one of ctx Started may be called again. Wait does not
// need it.
//
// A neighbour of the same user can stop the child between its becoming that
// user and its execve(2): a ctx without an end then waits as long as that.
func (p *Process) Started(ctx context.Context) error {
	if err := p.settle(ctx); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	return nil
}

// settle reads the messages of the agent and of the forked child until execve(2), or the
// child's death, closes the set-up socket.
func (p *Process) settle(ctx context.Context) error {
	if err := p.starting.Acquire(ctx, 1); err != nil {
		return err
	}
	defer p.starting.Release(1)
	for !p.settled {
		e, fd, err := p.setup.receive(ctx, p.tty)
		if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return err
		}
		if err == nil {
			err = p.takeSetupEvent(e, fd) // each event once, so that the loop ends
		}
		if err != nil {
			p.settled = true
			p.failure = errors.Join(p.verdict(err), p.setup.close())
		}
	}
	return p.failure
}

// takeSetupEvent takes one event of the set-up.
func (p *Process) takeSetupEvent(e event, fd int) (err error) {
	switch {
	case e.kind == eventTerminal && fd >= 0 && p.terminal == nil && p.failure == nil:
		p.terminal, err = openTerminal(fd)
		return err
	case e.kind == eventFailed && fd < 0 && p.failure == nil:
		p.failure = &StartError{e.stage, e.errno, p.subject(e.stage)}
		return nil
	default:
		descriptor.CloseFD(fd)
		return fmt.Errorf("event %d out of turn", e.kind)
	}
}

// verdict is the result of a set-up that ended with err, which is io.EOF after a success.
// The agent would keep a detached command that did not start, with the status of its
// failure.
func (p *Process) verdict(err error) error {
	var refused *StartError
	switch {
	case !errors.Is(err, io.EOF):
		return err
	case errors.As(p.failure, &refused):
		if p.detached && refused.Stage != StageID { // whose id is another's
			_ = p.conn.control.trySend(request{kind: requestForget, id: p.id}.encode())
		}
		return p.failure
	case p.tty && p.terminal == nil:
		err = errors.New("killed before it had a terminal")
	default:
		err = nil
	}
	return errors.Join(p.pollSocket(), err)
}

// pollSocket looks once at the exec's socket: if the agent is gone, no start is to be
// believed. Where somebody waits there, it is told.
func (p *Process) pollSocket() error {
	if !p.waiting.TryAcquire(1) {
		return nil
	}
	defer p.waiting.Release(1)
	if p.err != nil || p.ended {
		return p.err
	}
	if e, ok, err := p.exec.tryReceive(); ok || err != nil {
		return p.keepMessage(e, err)
	}
	return nil
}

// keepMessage keeps the agent's message, or the reason why there will be no more.
func (p *Process) keepMessage(e event, err error) error {
	switch {
	case errors.Is(err, io.EOF):
		err = ErrGone
	case err != nil:
	case e.kind == eventFailed && !p.ended && !p.drained:
		err = &StartError{e.stage, e.errno, p.subject(e.stage)}
	case e.kind == eventExited && !p.ended:
		p.ended, p.exit = true, e.exit
		if p.detached {
			p.exit.Ended = endTime(e.ended)
		}
		p.done.Store(true)
	case e.kind == eventDrained && p.detached && !p.drained:
		p.drained = true
	default:
		err = fmt.Errorf("event %d out of turn", e.kind)
	}
	if err != nil || p.ended && (p.drained || !p.detached) {
		err = errors.Join(err, p.exec.close())
	}
	p.err = err
	return err
}

// endTime is the time of the end, for a caller that hears of it now.
func endTime(told uint32) time.Time {
	boot, err := process.SinceBoot()
	if err != nil {
		return time.Time{}
	}
	return exitTime(told, time.Now(), boot)
}

// await takes the agent's messages until something is known.
func (p *Process) await(ctx context.Context, known *bool) error {
	if err := p.waiting.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("wait for %s: %w", p.name, err)
	}
	defer p.waiting.Release(1)
	err := p.err
	for !*known && err == nil {
		var e event
		e, _, err = p.exec.receive(ctx, false)
		if err == nil || ctx.Err() == nil || !errors.Is(err, ctx.Err()) {
			err = p.keepMessage(e, err)
		}
	}
	if !*known && err != nil {
		return fmt.Errorf("wait for %s: %w", p.name, err)
	}
	return nil
}

// Wait waits for the command's end. Once it is known, every call returns it;
// after an error of ctx it may be called again. The error is a *StartError where
// the command was not executed, ErrGone where its end will never be known.
func (p *Process) Wait(ctx context.Context) (Exit, error) {
	err := p.await(ctx, &p.ended)
	if p.setup != nil && (err == nil || ctx.Err() == nil || !errors.Is(err, ctx.Err())) {
		// The child is no more, so that this waits for nobody.
		if failure := p.settle(ctx); failure != nil && !errors.Is(err, failure) {
			err = fmt.Errorf("wait for %s: %w", p.name, failure)
		}
	}
	if err != nil {
		return Exit{}, err
	}
	return p.exit, nil
}

// Drained waits until the output of a detached command is in its files: until
// nobody in the sandbox has the command's standard output or standard error
// open any more. That may be long after Wait has returned, where the command
// left something running. Otherwise it is like Wait.
func (p *Process) Drained(ctx context.Context) error { return p.await(ctx, &p.drained) }

// Signal sends a signal to the command's process alone. It does not wait for
// its delivery. The error is os.ErrProcessDone once Wait has returned the exit.
func (p *Process) Signal(s syscall.Signal) error { return p.signal(s, false) }

// HasEnded says whether the agent has told the end of the command. It does not wait.
func (p *Process) HasEnded() bool {
	_ = p.pollSocket() // Wait returns an error
	return p.done.Load()
}

// SignalGroup sends a signal to all processes of the command's process group,
// as a terminal does for Ctrl-C. Otherwise it is like Signal.
func (p *Process) SignalGroup(s syscall.Signal) error { return p.signal(s, true) }

func (p *Process) signal(s syscall.Signal, group bool) error {
	if s < 1 || s > 64 {
		return fmt.Errorf("signal %s: no signal has the number %d", p.name, int(s))
	}
	if p.done.Load() {
		return os.ErrProcessDone
	}
	err := p.exec.trySend(request{kind: requestSignal, signal: s, group: group}.encode())
	switch {
	case errors.Is(err, os.ErrClosed), errors.Is(err, io.EOF):
		return os.ErrProcessDone
	case err != nil:
		return fmt.Errorf("signal %s: %w", p.name, err)
	}
	return nil
}

// Terminal is the master of the command's terminal, nil if it has none, or none yet: see
// Started. It is open until Close, so that the last output can still be read; a read after
// that ends with EIO.
func (p *Process) Terminal() *os.File {
	_ = p.starting.Acquire(context.Background(), 1) // it waits as long as it takes
	defer p.starting.Release(1)
	return p.terminal
}

// Abandon gives up a command that was begun: a detached one would go on. If the message
// cannot be sent, the caller has to kill the cgroup.
func (p *Process) Abandon() error {
	if p.detached {
		_ = p.exec.trySend(request{kind: requestSignal, signal: unix.SIGKILL, group: true}.encode())
		_ = p.exec.trySend(request{kind: requestSignal, signal: unix.SIGKILL}.encode())
	}
	return p.Close()
}

// Close gives up the command: if it still runs, it and its process group are
// killed, unless it is a detached one. It closes the terminal. It is safe to
// call twice.
func (p *Process) Close() error {
	err := p.exec.close()
	if p.setup != nil {
		err = errors.Join(err, p.setup.close())
		if terminal := p.Terminal(); terminal != nil {
			if closing := terminal.Close(); !errors.Is(closing, os.ErrClosed) {
				err = errors.Join(err, closing)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("close %s: %w", p.name, err)
	}
	return nil
}
