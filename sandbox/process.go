package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A Process is a command that was started.
type Process struct {
	sandbox        *Sandbox
	execution      Execution
	detached       bool
	begun          time.Time
	streams        streams.Streams
	stdout, stderr *streams.Capture // nil: not kept
	kept           keptOutput

	// ctx is that of Start, whose end is the command's; as in os/exec it is
	// kept because it is about the whole life of the Process.
	ctx context.Context
	// unfollow stops waiting for it.
	unfollow func() bool
	// given up by ctx, killed by Kill.
	gaveUp, killed atomic.Bool
	// grace is the time between SIGTERM and SIGKILL.
	grace time.Duration

	waiting sync.Once
	result  Result
	err     error
}

// ID is the id for [Sandbox.Attach]. It is known once Started has returned.
func (p *Process) ID() string {
	if p.execution == nil {
		return ""
	}
	return p.execution.ID()
}

var errNoProcess = fmt.Errorf("the process %w, or was not made by Start", ErrClosed)

// Started returns once the command runs: *[NotRunError] if it can't be executed.
// Nobody has to call it.
func (p *Process) Started(ctx context.Context) error {
	if p.execution == nil {
		return errNoProcess
	}
	err := p.execution.Started(ctx)
	if notRun, ok := errors.AsType[*NotRunError](err); ok {
		return advised(notRun)
	}
	return errorAbout(p.sandbox.info.ID, err)
}

// Joining returns a channel that is closed when the command of a transaction has succeeded and its
// writes begin to join the sandbox's files. Wait returns after the join. Another goroutine must call Wait.
// The channel is nil if the provider cannot tell.
func (p *Process) Joining() <-chan struct{} {
	return joiningOf(p.execution)
}

// killTime is how long a command that was killed may take to be gone. The
// kernel lets those go late that wait for a disk.
const killTime = 30 * time.Second

// follow has the command end when ctx is done.
func (p *Process) follow(ctx context.Context) {
	p.ctx = ctx
	if ctx.Done() == nil || p.detached {
		return
	}
	p.unfollow = context.AfterFunc(ctx, func() {
		p.gaveUp.Store(true)
		err := p.terminate()
		if errors.Is(err, os.ErrProcessDone) {
			p.gaveUp.Store(false)
		}
		if err != nil {
			return // it has ended, or nobody answers and Wait says so
		}
		waiting, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.grace+killTime)
		defer cancel()
		if _, err := p.execution.Wait(waiting); errors.Is(err, context.DeadlineExceeded) {
			p.execution.Close() //nolint:errcheck // Wait says that it was given up
		}
	})
}

// Grace is the time between SIGTERM and SIGKILL when the runtime ends the command.
func (p *Process) Grace() time.Duration { return p.grace }

// terminate has the command end, with its grace if the provider has that.
func (p *Process) terminate() error {
	if t, ok := p.execution.(Terminator); ok {
		return t.Terminate()
	}
	return p.execution.Signal(unix.SIGKILL, true)
}

// Wait returns the Result of the command, once the command and all that it has started
// have ended and the output has been read; when the ctx of Start is done, soon after that.
// Further calls return the same. An error says that the sandbox failed, or is the error of
// a writer of the caller: the Result then has all that is known.
func (p *Process) Wait() (Result, error) {
	if p.execution == nil {
		return Result{}, errNoProcess
	}
	p.waiting.Do(func() { p.result, p.err = p.wait() })
	return p.result, p.err
}

func (p *Process) wait() (Result, error) {
	ctx := context.Background()
	if p.detached {
		ctx = p.ctx
	}
	r, err := p.execution.Wait(ctx)
	if p.unfollow != nil {
		p.unfollow()
	}
	var notRun *NotRunError
	switch {
	case errors.As(err, &notRun):
		r, err = p.notRun(advised(notRun)), nil
	case err != nil:
		r.ID = p.sandbox.info.ID
		if errors.Is(err, net.ErrClosed) {
			err = errManagerClosed
		}
		if errors.Is(err, os.ErrClosed) {
			err = ErrClosed
			if p.gaveUp.Load() {
				err = fmt.Errorf("the command was told to end %s ago and is not gone", p.grace+killTime)
			}
		}
	default:
		p.blame(&r)
	}
	copied := p.finish(&r, err != nil || r.Status == StatusTimedOut)
	return r, errorAbout(p.sandbox.info.ID, errors.Join(err, copied, p.execution.Close()))
}

// blame says in the Result that the caller ended the command. If processes can only be
// killed one after the other, the command may have seen another one die, and have exited
// because of that.
func (p *Process) blame(r *Result) {
	gaveUp := p.gaveUp.Load()
	failed := r.Status == StatusExited && r.ExitCode != 0
	killed := r.Signal == "SIGKILL" && (r.Status == StatusSignaled || r.Status == StatusLost)
	if !gaveUp && !p.killed.Load() || !failed && !killed {
		return
	}
	if _, tells := p.execution.(Terminator); tells && gaveUp && !p.killed.Load() {
		return // the provider has said so
	}
	r.Status, r.Signal, r.ExitCode = StatusSignaled, "SIGKILL", spec.ExitSignalBase+int(unix.SIGKILL)
	r.Reason = "the caller killed the command with all it had started"
	if gaveUp {
		r.Reason = "the caller gave up, and the command was killed with all it had started"
	}
}

// notRun is the Result of a command that could not be executed.
func (p *Process) notRun(e *NotRunError) Result {
	return Result{
		ID: p.sandbox.info.ID, Status: StatusError, ExitCode: -1, Reason: e.Reason,
		Duration: time.Since(p.begun), IORead: -1, IOWritten: -1, NetworkReceived: -1, NetworkSent: -1, Isolation: p.sandbox.info.Isolation, Limits: p.sandbox.info.Limits,
	}
}

// outputTime is how long the caller has to take the output of a command that was
// made to end.
const outputTime = 2 * time.Second

// finish collects the output. Of a command that ended by itself the caller takes
// it at its leisure, until it gives up.
func (p *Process) finish(r *Result, forced bool) error {
	ctx := p.ctx
	if forced || p.killed.Load() || ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), outputTime)
		defer cancel()
	}
	err := errors.Join(p.streams.Finish(ctx), p.kept.finish(ctx))
	if errors.Is(err, streams.ErrNotTaken) {
		r.Notes = append(r.Notes, streams.ErrNotTaken.Error())
		err = nil
	}
	for i, out := range []struct {
		capture   *streams.Capture
		kept      *[]byte
		truncated *bool
		omitted   *int64
	}{{p.stdout, &r.Stdout, &r.StdoutTruncated, &r.StdoutOmitted}, {p.stderr, &r.Stderr, &r.StderrTruncated, &r.StderrOmitted}} {
		if copied := &p.kept.out[i]; copied.file.Ring { // a follower has got bytes that the file has no more
			*out.omitted, *out.truncated = copied.omitted, copied.omitted > 0
		}
		if out.capture != nil {
			kept, omitted := out.capture.Take()
			*out.kept = kept
			*out.omitted += omitted
			*out.truncated = *out.truncated || omitted > 0
		}
	}
	if err != nil {
		return fmt.Errorf("copy the command's output: %w", err)
	}
	return nil
}

// Signal sends a signal to the command's process group, as a terminal does. That
// it has ended is no error.
func (p *Process) Signal(sig syscall.Signal) error {
	if err := p.signal(sig, false); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Kill ends the command and all that it started, wherever that has gone. Wait
// tells when that is done.
func (p *Process) Kill() error {
	isFirst := !p.killed.Swap(true)
	err := p.signal(unix.SIGKILL, true)
	if errors.Is(err, os.ErrProcessDone) {
		if isFirst { // the command had ended by itself
			p.killed.Store(false)
		}
		return nil
	}
	return err
}

// signal returns os.ErrProcessDone if the command is known to have ended.
func (p *Process) signal(sig syscall.Signal, tree bool) error {
	if p.execution == nil {
		return errNoProcess
	}
	err := p.execution.Signal(sig, tree)
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return errorAbout(p.sandbox.info.ID, fmt.Errorf("signal %d: %w", int(sig), err))
	}
	return err
}

// Close lets go of the command: one that is not detached ends with all that it started,
// by SIGTERM first, and Close does not wait for that. Not needed after Wait; safe to call twice.
func (p *Process) Close() error {
	if p.execution == nil {
		return nil
	}
	p.killed.Store(true)
	err := p.execution.Close()
	if _, waited := p.Wait(); waited != nil && !errors.Is(waited, ErrClosed) {
		err = errors.Join(err, waited)
	}
	return errorAbout(p.sandbox.info.ID, err)
}
