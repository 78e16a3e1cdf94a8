package launcher

import (
	"context"
	"errors"

	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
)

// Pause freezes all processes of the sandbox. No command can be started until Resume. A pause
// does not stop the timeouts of running commands. If the sandbox is paused already, Pause returns nil.
//
// Errors: [fault.ErrNotFound], [fault.ErrNotRunning], [fault.ErrBusy].
func (s *Sandbox) Pause(ctx context.Context) error {
	return s.change(ctx, func(c *container.Container) error {
		if s.session.Paused() {
			return nil
		}
		return s.session.Lift.Without(c.Pause)
	})
}

// Resume lets a paused sandbox go on. If the sandbox is not paused, Resume returns nil.
//
// Errors: those of Pause.
func (s *Sandbox) Resume(ctx context.Context) error {
	return s.change(ctx, func(c *container.Container) error {
		err := c.Resume()
		if errors.Is(err, container.ErrNotPaused) {
			return nil
		}
		return err
	})
}

// change calls f with the sandbox's container. It does this within withLock, so that no other
// sandbox can take the name of the container during the call.
func (s *Sandbox) change(ctx context.Context, f func(*container.Container) error) error {
	return s.withLock(ctx, func() error {
		c, err := s.session.Container()
		if err == nil {
			err = f(c)
		}
		if errors.Is(err, container.ErrNotRunning) || errors.Is(err, container.ErrNotExist) {
			return &fault.SandboxError{ID: s.session.ID, Err: fault.ErrNotRunning}
		}
		return err
	})
}

// withLock calls f with the lock of the sandbox's directory, so that no other process can change
// the sandbox. The sandbox must be up. withLock first ends the half-done work of a killed process.
func (s *Sandbox) withLock(ctx context.Context, f func() error) error {
	state, err := statedir.Await(ctx, s.launcher.Sandboxes(), s.session.ID)
	if err != nil {
		return record.NotFound(s.session.ID, err)
	}
	defer state.Release()
	if err := s.finish(ctx); err != nil {
		return err
	}
	return f()
}

// finish ends the half-done work of a killed process. The caller must hold the sandbox, which must
// be up.
func (s *Sandbox) finish(ctx context.Context) error {
	r, err := record.Read(s.session.Path())
	if err != nil || r.Init != s.session.Init() || !s.session.Up() {
		return s.session.Why(ctx, &fault.SandboxError{ID: s.session.ID, Err: fault.ErrNotRunning})
	}
	n := s.launcher.networks()
	if r.HalfDone() {
		err = errors.Join(s.session.Overlay.FinishJoin(ctx), s.session.Overlay.TakeBackSwitch(), s.endAttach(), n.EndChange(ctx, s.session.Sandbox))
	}
	return errors.Join(err, n.Restore(ctx, s.session.Sandbox))
}

// renew takes the changes of the sandbox by other processes. If such a process works on the sandbox,
// renew waits for its end. If the process was killed, renew ends the half-done work. Without a change
// renew costs a stat(2), and in the proxied network a question to its process.
func (s *Sandbox) renew(ctx context.Context) error {
	if err := s.session.Renew(); err != nil {
		return err
	}
	if r := s.session.Current(); !r.HalfDone() {
		isServed, err := s.launcher.networks().IsServed(ctx, s.session.ID, r)
		if isServed || err != nil {
			return err
		}
	}
	return s.withLock(ctx, func() error { return nil })
}
