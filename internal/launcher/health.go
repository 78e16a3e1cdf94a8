package launcher

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/store"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/integrity"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
)

// healthy returns an error if the sandbox cannot be used. A paused sandbox is healthy. The caller must
// hold the sandbox.
func (s *Sandbox) healthy(ctx context.Context) error {
	if !s.session.Up() {
		return &fault.SandboxError{ID: s.session.ID, Err: fault.ErrNotRunning}
	}
	if err := s.takesWrites(); err != nil {
		return err
	}
	if s.session.Paused() {
		return nil
	}
	if err := s.finish(ctx); err != nil { // before the connection: a killed process can have left the sandbox frozen
		return err
	}
	s.session.Enter()
	defer s.session.Leave()
	if _, err := s.session.Connect(ctx); err != nil {
		return err
	}
	return s.session.TakeOver(ctx)
}

// errReadOnly is the condition of a sandbox that can no longer be used, except to read its files.
var errReadOnly = errors.New("has a disk that became read-only")

// takesWrites returns an error if the sandbox's files can only be read: the file system of an
// image becomes read-only after a failure of the host's disk. Any file can be damaged then.
func (s *Sandbox) takesWrites() error {
	r := s.session.Current()
	f, err := record.OpenStore(r.Init)
	if err != nil {
		return nil // the sandbox has just ended, and the caller's next step notices this
	}
	defer f.Close()
	err = r.Backend(s.launcher.Roots).TakesWrites(f)
	switch {
	case errors.Is(err, store.ErrAbandoned): // a removal was killed after it had dropped the files
		return &fault.SandboxError{ID: s.session.ID, Err: fault.ErrNotRunning}
	case errors.Is(err, unix.EROFS):
		failure := integrity.Damaged(s.launcher.Roots, integrity.CheckOwn(context.Background(), s.launcher.Roots, r))
		return &fault.SandboxError{ID: s.session.ID, Err: fault.Unavailable(fmt.Errorf("%w: %w", errReadOnly, failure))}
	}
	return nil
}

// takeOver ends the half-done work of killed processes in the sandbox, and their commands.
func (s *Sandbox) takeOver(ctx context.Context) error {
	if err := s.renew(ctx); err != nil {
		return err
	}
	return s.session.TakeOver(ctx)
}
