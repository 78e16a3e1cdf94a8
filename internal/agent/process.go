package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
)

// Process is a command that was started. Its methods may be called from
// several goroutines.
type Process struct {
	name     string
	exec     *socket
	terminal *os.File

	// waiting is held by the one that reads from exec, and guards exit and
	// err, which are set once ended is.
	waiting chan struct{}
	ended   bool
	exit    Exit
	err     error
}

// Exit is how a command ended, by the agent's word.
type Exit struct {
	// Status is either Exited or Signaled.
	Status syscall.WaitStatus
	// UserTime, SystemTime and MaxRSS, in bytes, count the command and those
	// of its descendants that were waited for.
	UserTime, SystemTime time.Duration
	MaxRSS               int64
}

// begin looks once at what the agent said while the child was being set up:
// nothing, unless there was no child, or it has ended already.
func (p *Process) begin(cmd *Command) error {
	e, ok, err := p.exec.tryReceive()
	switch {
	case err != nil:
		return err
	case ok && e.kind == eventFailed:
		return &StartError{e.stage, e.errno, cmd.subject(e.stage)}
	case cmd.TTY != nil && p.terminal == nil:
		return errors.New("killed before it had a terminal")
	case ok:
		return p.end(e, nil)
	}
	return nil
}

// end keeps how the command ended, or why that will not be known.
func (p *Process) end(e event, err error) error {
	if err == nil && e.kind != eventExited {
		err = fmt.Errorf("event %d in place of the exit", e.kind)
	}
	if errors.Is(err, io.EOF) {
		err = ErrGone
	}
	p.ended, p.exit, p.err = true, e.exit, errors.Join(err, p.exec.close())
	return p.err
}

// Wait waits for the command's end. Once it is known, every call returns it;
// after an error of ctx it may be called again. ErrGone means that it will
// never be known.
func (p *Process) Wait(ctx context.Context) (Exit, error) {
	select {
	case p.waiting <- struct{}{}:
	case <-ctx.Done():
		return Exit{}, fmt.Errorf("wait for %s: %w", p.name, ctx.Err())
	}
	defer func() { <-p.waiting }()
	err := p.err
	if !p.ended {
		var e event
		e, _, err = p.exec.receive(ctx, false)
		if err == nil || ctx.Err() == nil || !errors.Is(err, ctx.Err()) {
			err = p.end(e, err)
		}
	}
	if err != nil {
		return Exit{}, fmt.Errorf("wait for %s: %w", p.name, err)
	}
	return p.exit, nil
}

// Signal sends a signal to the command's process alone. It does not wait for
// its delivery. The error is os.ErrProcessDone once Wait has returned the exit.
func (p *Process) Signal(s syscall.Signal) error { return p.signal(s, false) }

// SignalGroup sends a signal to all processes of the command's process group,
// as a terminal does for Ctrl-C. Otherwise it is like Signal.
func (p *Process) SignalGroup(s syscall.Signal) error { return p.signal(s, true) }

func (p *Process) signal(s syscall.Signal, group bool) error {
	if s < 1 || s > 64 {
		return fmt.Errorf("signal %s: no signal has the number %d", p.name, int(s))
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

// Terminal is the master of the command's terminal, nil if it has none. It is
// open until Close, so that what the command wrote last can still be read; a
// read after that ends with EIO.
func (p *Process) Terminal() *os.File { return p.terminal }

// Close gives up the command: if it still runs, it and its process group are
// killed. It closes the terminal. It is safe to call twice.
func (p *Process) Close() error {
	var err error
	if p.exec != nil {
		err = p.exec.close()
	}
	if p.terminal != nil {
		if closing := p.terminal.Close(); !errors.Is(closing, os.ErrClosed) {
			err = errors.Join(err, closing)
		}
	}
	if err != nil {
		return fmt.Errorf("close %s: %w", p.name, err)
	}
	return nil
}
