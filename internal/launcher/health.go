package launcher

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/integrity"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/store"
)

// healthy returns the reason why the sandbox cannot be used. A pause is no reason.
func (s *Sandbox) healthy(ctx context.Context) error {
	if !s.session.Up() {
		return &launch.SandboxError{ID: s.session.ID, Err: launch.ErrNotRunning}
	}
	if err := s.takesWrites(); err != nil {
		return err
	}
	if s.session.Paused() {
		return nil
	}
	s.session.Enter()
	defer s.session.Leave()
	if _, err := s.session.Connect(ctx); err != nil {
		return err
	}
	return s.takeOver(ctx)
}

// errReadOnly is of a sandbox of which nothing more than its files is of use.
var errReadOnly = errors.New("has a disk that became read-only")

// takesWrites returns an error if the sandbox's files can only be read: the file system of
// an image allows no writes once the host's disk has failed. No file is certain then.
func (s *Sandbox) takesWrites() error {
	r := s.session.Current()
	f, err := record.OpenStore(r.Init)
	if err != nil {
		return nil // it has just ended, which shows soon
	}
	defer f.Close()
	err = r.Backend(s.launcher.Roots).TakesWrites(f)
	switch {
	case errors.Is(err, store.ErrAbandoned): // by a removal that was killed: nothing of it is left
		return &launch.SandboxError{ID: s.session.ID, Err: launch.ErrNotRunning}
	case errors.Is(err, unix.EROFS):
		failure := integrity.Damaged(s.launcher.Roots, integrity.CheckOwn(context.Background(), s.launcher.Roots, r))
		return &launch.SandboxError{ID: s.session.ID, Err: launch.Unavailable(fmt.Errorf("%w: %w", errReadOnly, failure))}
	}
	return nil
}

// takeOver ends the half-done work of killed processes in the sandbox, and their commands.
func (s *Sandbox) takeOver(ctx context.Context) error {
	if err := s.endHalfDone(ctx); err != nil {
		return err
	}
	return s.session.TakeOver(ctx)
}
