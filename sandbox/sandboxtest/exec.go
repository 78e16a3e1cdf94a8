package sandboxtest

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// An instance is one sandbox of a fake.
type instance struct {
	fake *Fake
	info sandbox.Info
	ctx  context.Context // done when it is removed
	end  context.CancelFunc
	*state
}

type state struct {
	// mu guards the fields below. It comes after the mutex of the Fake.
	mu     sync.Mutex
	paused bool
	fileState
	// execs are the running commands, and the ended detached commands whose Result no caller
	// has taken yet.
	execs map[string]*execution
}

// Info implements [sandbox.Instance].
func (i *instance) Info() sandbox.Info { return i.info }

// Describe implements [sandbox.Describer].
func (i *instance) Describe(context.Context) (sandbox.Info, error) {
	if i.ctx.Err() != nil {
		return sandbox.Info{}, sandbox.ErrNotFound
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	info := i.info
	if i.paused {
		info.State = sandbox.StatePaused
	}
	return info, nil
}

// Pause and Resume implement [sandbox.Pauser].
func (i *instance) Pause(context.Context) error  { return i.pause(true) }
func (i *instance) Resume(context.Context) error { return i.pause(false) }

func (i *instance) pause(paused bool) error {
	if i.ctx.Err() != nil {
		return sandbox.ErrNotFound
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.paused = paused
	return nil
}

// Start implements [sandbox.Instance].
func (i *instance) Start(_ context.Context, c sandbox.Command, stdio [3]*os.File) (sandbox.Execution, error) {
	if c.Terminal != nil {
		return nil, fmt.Errorf("a terminal: %w with a fake", sandbox.ErrUnavailable)
	}
	i.mu.Lock()
	paused := i.paused
	i.mu.Unlock()
	switch {
	case i.ctx.Err() != nil:
		return nil, sandbox.ErrNotFound
	case paused:
		return nil, sandbox.ErrPaused
	}
	e := &execution{instance: i, id: "exec-" + strings.ToLower(rand.Text()), args: c.Args, begun: time.Now(), killed: make(chan struct{}), ended: make(chan struct{})}
	p, err := e.program(c, stdio)
	if err != nil {
		return nil, err
	}
	i.fake.mu.Lock()
	i.fake.commands = append(i.fake.commands, p.Command)
	i.fake.mu.Unlock()
	if e.detached() {
		a, err := e.attach()
		if err != nil {
			descriptor.Close(e.files[:]...)
			return nil, err
		}
		e.run(p)
		return a, nil
	}
	e.run(p)
	return e, nil
}

// program prepares the argument of Fake.Run.
func (e *execution) program(c sandbox.Command, stdio [3]*os.File) (p *Program, err error) {
	if e.files, err = duplicate(stdio); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			descriptor.Close(e.files[:]...)
		}
	}()
	c.Stdin, c.Stdout, c.Stderr = nil, nil, nil
	p = &Program{instance: e.instance, Sandbox: e.instance.info, Command: c, Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard}
	if e.files[0] != nil {
		p.Stdin = e.files[0]
	}
	if e.files[1] != nil {
		p.Stdout = e.files[1]
	}
	if e.files[2] != nil {
		p.Stderr = e.files[2]
	}
	if c.Detached {
		if err := e.keepOutput(c.OutputLimit); err != nil {
			return nil, err
		}
		p.Stdout, p.Stderr = e.kept[0], e.kept[1]
	}
	if c.Transaction {
		if p.transaction, err = e.instance.transaction(); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// run starts the goroutine that plays the command.
func (e *execution) run(p *Program) {
	i := e.instance
	ctx := i.ctx
	cancel := context.CancelFunc(func() {})
	e.grace = cmp.Or(sandbox.Grace(p.Command.Grace), i.info.Config.Grace).Time()
	if timeout := cmp.Or(max(p.Command.Timeout, 0), time.Duration(i.info.Config.Timeout)); timeout > 0 {
		e.timeout = timeout
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, errTimeout)
	}
	ctx, e.stop = context.WithCancelCause(ctx)
	i.mu.Lock()
	if i.execs == nil {
		i.execs = map[string]*execution{}
	}
	i.execs[e.id] = e
	i.mu.Unlock()
	go func() {
		defer cancel()
		e.play(ctx, p)
	}()
}

var errTimeout = errors.New("timed out")

// duplicate returns files of the fake's own, which the caller of Start does not close.
func duplicate(files [3]*os.File) (own [3]*os.File, err error) {
	for n, f := range files {
		if f == nil {
			continue
		}
		if own[n], err = descriptor.Pollable(f); err != nil {
			descriptor.Close(own[:]...)
			return own, err
		}
	}
	return own, nil
}

// An execution is one call of Fake.Run.
type execution struct {
	instance *instance
	id       string
	args     []string
	begun    time.Time
	files    [3]*os.File
	kept     [2]*keptOutput // of a detached command
	timeout  time.Duration
	grace    time.Duration
	stop     context.CancelCauseFunc

	// killed is closed by SIGKILL, once.
	killed  chan struct{}
	killing sync.Once

	ended  chan struct{}
	result sandbox.Result
}

// signalError is the cause of the end of a command by a signal.
type signalError struct{ by syscall.Signal }

func (s signalError) Error() string { return unix.SignalName(s.by) }

// errGaveUp is the cause of the end of a command whose caller has given up.
var errGaveUp = errors.New("the caller gave up")

// play calls Fake.Run, and decides how the command has ended.
func (e *execution) play(ctx context.Context, p *Program) {
	code := make(chan int, 1)
	go func() { // ends with Fake.Run; the end of the command does not wait for Fake.Run
		if e.instance.fake.Run == nil {
			code <- 0
			return
		}
		code <- e.instance.fake.Run(ctx, p)
	}()
	r := sandbox.Result{
		ID: e.instance.info.ID, Exec: e.id, IORead: -1, IOWritten: -1, NetworkReceived: -1, NetworkSent: -1, Isolation: sandbox.IsolationNone, Limits: spec.NoLimits(), Notes: []string{Note},
	}
	select {
	case n := <-code:
		r.Status, r.ExitCode, r.Reason = sandbox.StatusExited, n&0xff, fmt.Sprintf("the command ended with exit code %d", n&0xff)
		if r.ExitCode == 0 {
			r.Reason = "the command succeeded"
		}
	case <-ctx.Done():
		e.cutOff(&r, context.Cause(ctx), e.awaitGrace(context.Cause(ctx), code))
	}
	descriptor.Close(e.files[:]...)
	if e.detached() {
		r.StdoutOmitted, r.StderrOmitted = e.kept[0].end(), e.kept[1].end()
		r.StdoutTruncated, r.StderrTruncated = r.StdoutOmitted > 0, r.StderrOmitted > 0
	}
	r.Duration = time.Since(e.begun)
	if e.instance.fake.Result != nil {
		e.instance.fake.Result(p, &r)
		r.ID, r.Isolation, r.Limits = e.instance.info.ID, sandbox.IsolationNone, spec.NoLimits()
		if !slices.Contains(r.Notes, Note) {
			r.Notes = append(r.Notes, Note)
		}
	}
	if err := e.instance.settle(p.transaction, &r); err != nil {
		r.Notes = append(r.Notes, fmt.Sprintf("the transaction has not ended well: %v", err))
	}
	e.result = r
	if !e.detached() {
		e.instance.mu.Lock()
		delete(e.instance.execs, e.id)
		e.instance.mu.Unlock()
	}
	close(e.ended)
}

// detached says that the command goes on without its caller.
func (e *execution) detached() bool { return e.kept[0] != nil }

func (e *execution) hasEnded() bool {
	select {
	case <-e.ended:
		return true
	default:
		return false
	}
}

// awaitGrace waits for the return of Fake.Run during the grace, unless a signal has ended the command. It
// returns how the command has ended.
func (e *execution) awaitGrace(cause error, code <-chan int) (farewell string) {
	if _, by := errors.AsType[signalError](cause); by || e.grace == 0 {
		return "was killed with all it had started"
	}
	select {
	case n := <-code:
		return fmt.Sprintf("ended by itself after SIGTERM, with exit code %d", n&0xff)
	case <-time.After(e.grace):
		return fmt.Sprintf("was killed with all it had started, since it did not end within %s after SIGTERM", e.grace)
	case <-e.killed:
		return "was killed with all it had started"
	}
}

// cutOff describes a command that did not end by itself.
func (e *execution) cutOff(r *sandbox.Result, cause error, farewell string) {
	var by signalError
	switch {
	case errors.Is(cause, errTimeout):
		r.Status, r.ExitCode = sandbox.StatusTimedOut, spec.ExitTimedOut
		r.Reason = fmt.Sprintf("the command was still running after %s and %s", e.timeout, farewell)
	case errors.Is(cause, errGaveUp):
		sig := unix.SIGKILL
		if strings.HasPrefix(farewell, "ended") {
			sig = unix.SIGTERM
		}
		r.Status, r.ExitCode, r.Signal = sandbox.StatusSignaled, spec.ExitSignalBase+int(sig), unix.SignalName(sig)
		r.Reason = "the caller gave up, and the command " + farewell
	case errors.As(cause, &by):
		r.Status, r.ExitCode, r.Signal = sandbox.StatusSignaled, spec.ExitSignalBase+int(by.by), unix.SignalName(by.by)
		r.Reason = fmt.Sprintf("the command was killed by signal %d (%s)", int(by.by), r.Signal)
	default:
		r.Status, r.ExitCode, r.Signal = sandbox.StatusLost, spec.ExitSignalBase+int(unix.SIGKILL), "SIGKILL"
		r.Reason = "the sandbox was removed while the command ran"
	}
}

// ID implements [sandbox.Execution].
func (e *execution) ID() string { return "" }

// Started implements [sandbox.Execution].
func (e *execution) Started(context.Context) error { return nil }

// Signal implements [sandbox.Execution]: any signal ends the command.
func (e *execution) Signal(sig syscall.Signal, _ bool) error {
	if e.hasEnded() {
		return os.ErrProcessDone
	}
	e.stop(signalError{sig})
	if sig == unix.SIGKILL {
		e.kill()
	}
	return nil
}

// Terminate implements [sandbox.Terminator]: the context of Fake.Run ends, and the command ends when
// Fake.Run returns, at the latest after the grace.
func (e *execution) Terminate() error {
	if e.hasEnded() {
		return os.ErrProcessDone
	}
	e.stop(errGaveUp)
	return nil
}

// kill ends the grace of the command.
func (e *execution) kill() { e.killing.Do(func() { close(e.killed) }) }

// Wait implements [sandbox.Execution].
func (e *execution) Wait(ctx context.Context) (sandbox.Result, error) {
	select {
	case <-e.ended:
		return e.result, nil
	case <-ctx.Done():
		return sandbox.Result{}, ctx.Err()
	}
}

// Close implements [sandbox.Execution].
func (e *execution) Close() error {
	e.stop(errGaveUp)
	<-e.ended
	return nil
}
