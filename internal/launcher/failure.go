package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/overlay"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/store"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/integrity"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A write inside a sandbox with storage on disk can succeed and be lost later, when
// the kernel writes it to the image: the host's disk is full, or broken. PID 1 holds
// an open file that is older than any such error, and the launcher asks that file.

// Verify returns an error that is [fault.ErrDamaged] if any write to the sandbox's files was
// lost. With sync, Verify first writes all data to disk. If it returns nil then, all reads of the
// sandbox's files before the call have returned the right data. Without sync, Verify only looks
// for a recorded error. If a removal has made the sandbox's files fail, Verify waits for the end
// of the removal. Files in memory are lost when PID 1 ends.
//
// Errors: [fault.ErrDamaged], [fault.ErrNotFound], [fault.ErrNotRunning].
func (s *Sandbox) Verify(ctx context.Context, sync bool) error {
	err := s.verify(ctx, sync)
	if errors.Is(err, fault.ErrNotRunning) {
		if gone := s.unlessRemoved(ctx, fault.ErrNotRunning); errors.Is(gone, fault.ErrNotFound) {
			return gone
		}
	}
	return err
}

// verify is Verify without the wait for a removal. A caller may hold the lock of the sandbox's
// directory.
func (s *Sandbox) verify(ctx context.Context, sync bool) error {
	r, err := record.Read(s.session.Path())
	if err != nil {
		return record.NotFound(s.session.ID, err)
	}
	if r.Init != s.session.Init() { // another sandbox has the name now
		return &fault.SandboxError{ID: s.session.ID, Err: fault.ErrNotFound}
	}
	if err := s.verifyMemory(r); err != nil {
		return &fault.SandboxError{ID: s.session.ID, Err: err}
	}
	err = integrity.Verify(ctx, s.launcher.Roots, r, sync)
	if err == nil {
		return nil
	}
	if errors.Is(err, fs.ErrNotExist) && r.Init.Lives() && !statedir.RemovalBegun(s.session.Path()) {
		return &fault.SandboxError{ID: s.session.ID, Err: fmt.Errorf(
			"%w: its files on disk are gone (%v); copy out single files with exec and check each of them, and remove the sandbox with down", fault.ErrDamaged, err)} //nolint:errorlint // the sandbox is there
	}
	if errors.Is(err, store.ErrAbandoned) || errors.Is(err, fs.ErrNotExist) {
		err = fault.ErrNotRunning // stopped or removed during the check
	}
	return &fault.SandboxError{ID: s.session.ID, Err: err}
}

// verifyMemory returns an error if a launcher may have emptied a store in memory before the
// call. A launcher empties a store only after the end of PID 1, or in a removal. It notes a
// removal before it kills a process.
func (s *Sandbox) verifyMemory(r record.Record) error {
	switch {
	case r.Backend(s.launcher.Roots).Durable():
		return nil
	case statedir.RemovalBegun(s.session.Path()):
		return errLeaving
	case !r.Init.Lives():
		return errInMemory
	}
	return nil
}

// checkSnapshot returns an error if an image of the snapshot has a recorded failure. A sandbox
// that begins with the snapshot also calls checkMountedSnapshot.
func checkSnapshot(roots record.Roots, name string, s overlay.Snapshot) error {
	for _, refs := range s.Places {
		for _, ref := range refs {
			err := store.Failure(filepath.Join(roots.SnapshotDir(name), filepath.Base(ref.Image)))
			if err != nil {
				return snapshotDamaged(name, err)
			}
		}
	}
	return nil
}

// checkMountedSnapshot checks the file systems of the snapshot with which a sandbox begins,
// after they are mounted.
func checkMountedSnapshot(ctx context.Context, roots record.Roots, r record.Record) error {
	for _, image := range r.Images() {
		if image == r.Image {
			continue
		}
		if err := integrity.CheckFrozen(ctx, roots.ImagePath(image)); err != nil {
			return snapshotDamaged(r.From, err)
		}
	}
	return nil
}

// snapshotDamaged names the snapshot in an error of its images.
func snapshotDamaged(name string, err error) error {
	if _, ok := errors.AsType[*store.FailureError](err); ok {
		err = fmt.Errorf("%w: %w; begin without it, and remove it with snapshot --remove %s", fault.ErrDamaged, err, name)
	}
	return fmt.Errorf("snapshot %s %w", name, err)
}

// noteDamage adds a note to a sandbox's description if a lost write is recorded.
func noteDamage(roots record.Roots, r record.Record, i *spec.Info) {
	if err := integrity.Verify(context.Background(), roots, r, false); errors.Is(err, fault.ErrDamaged) {
		i.Notes = append(slices.Clone(i.Notes), "the sandbox "+err.Error())
	}
}
