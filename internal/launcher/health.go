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

// healthy says what keeps the sandbox from being used. That somebody has paused
// it does not.
func (v *Sandbox) healthy(ctx context.Context) error {
	if !v.session.Up() {
		return &launch.SandboxError{ID: v.session.ID, Err: launch.ErrNotRunning}
	}
	if err := v.takesWrites(); err != nil {
		return err
	}
	if v.session.Paused() {
		return nil
	}
	v.session.Enter()
	defer v.session.Leave()
	if _, err := v.session.Connect(ctx); err != nil {
		return err
	}
	return v.takeOver(ctx)
}

// errReadOnly is of a sandbox of which nothing more than its files is of use.
var errReadOnly = errors.New("has a disk that became read-only")

// takesWrites returns an error if the sandbox's files can only be read: the file system of
// an image allows no writes once the host's disk has failed. No file is certain then.
func (v *Sandbox) takesWrites() error {
	r := v.session.Current()
	f, err := record.OpenStore(r.Init)
	if err != nil {
		return nil // it has just ended, which shows soon
	}
	defer f.Close()
	err = r.Backend(v.launcher.Roots).TakesWrites(f)
	switch {
	case errors.Is(err, store.ErrAbandoned): // by a removal that was killed: nothing of it is left
		return &launch.SandboxError{ID: v.session.ID, Err: launch.ErrNotRunning}
	case errors.Is(err, unix.EROFS):
		failure := integrity.Damaged(v.launcher.Roots, integrity.CheckOwn(context.Background(), v.launcher.Roots, r))
		return &launch.SandboxError{ID: v.session.ID, Err: launch.Unavailable(fmt.Errorf("%w: %w", errReadOnly, failure))}
	}
	return nil
}

// takeOver ends what killed processes have left half done in the sandbox, and what their
// commands have left running.
func (v *Sandbox) takeOver(ctx context.Context) error {
	if err := v.endHalfDone(ctx); err != nil {
		return err
	}
	return v.session.TakeOver(ctx)
}
