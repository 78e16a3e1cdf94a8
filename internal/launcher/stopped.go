package launcher

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/overlay"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
)

// OpenStopped returns a handle of a sandbox that may have stopped. For a stopped sandbox only
// Layers, Applied, Verify and Release can be used.
//
// Errors: [fault.ErrNotFound].
func (l *Launcher) OpenStopped(_ context.Context, id string) (*Sandbox, error) { return l.open(id) }

// errInMemory and errLeaving are the reasons why a stopped sandbox has no files.
var (
	errInMemory = fmt.Errorf("%w, and its writes were in memory and are lost; remove it with down, or replace it with up", fault.ErrNotRunning)
	errLeaving  = fmt.Errorf("%w: its removal has begun; run down again", fault.ErrNotRunning)
)

// holdStopped takes hold of a stopped sandbox with its files on disk. The caller must release the
// directory.
func (s *Sandbox) holdStopped(ctx context.Context) (*statedir.Dir, record.Record, error) {
	state, err := statedir.Await(ctx, s.launcher.Sandboxes(), s.session.ID)
	if err != nil {
		return nil, record.Record{}, record.NotFound(s.session.ID, err)
	}
	r, err := record.Read(state.Path)
	switch {
	case err != nil:
		err = record.NotFound(s.session.ID, err)
	case r.Init != s.session.Init():
		err = &fault.SandboxError{ID: s.session.ID, Err: fault.ErrNotFound}
	case statedir.RemovalBegun(state.Path):
		err = &fault.SandboxError{ID: s.session.ID, Err: errLeaving}
	case !r.Init.Ends():
		err = s.session.Why(ctx, &fault.SandboxError{ID: s.session.ID, Err: fault.ErrNotRunning})
	case !r.Backend(s.launcher.Roots).Durable():
		err = &fault.SandboxError{ID: s.session.ID, Err: errInMemory}
	}
	if err != nil {
		state.Release()
		return nil, record.Record{}, err
	}
	return state, r, nil
}

// withLockAndFiles is withLock, but also for a stopped sandbox with its files on disk.
func (s *Sandbox) withLockAndFiles(ctx context.Context, what func() error) error {
	err := s.withLock(ctx, what)
	if !errors.Is(err, fault.ErrNotRunning) {
		return err
	}
	state, _, err := s.holdStopped(ctx)
	if err != nil {
		return err
	}
	defer state.Release()
	return what()
}

// stoppedLayers returns the Layers of a stopped sandbox. The mount of the image shows the ids as
// processes inside see them.
func (s *Sandbox) stoppedLayers(ctx context.Context, unprivileged bool) ([]HeldTree, error) {
	state, r, err := s.holdStopped(ctx)
	if err != nil {
		return nil, err
	}
	defer state.Release()
	top, err := r.Backend(s.launcher.Roots).Mount()
	if err != nil {
		return nil, fmt.Errorf("files of the stopped sandbox %s: %w", s.session.ID, err)
	}
	defer top.Close()
	if r, err = r.WithoutUnmade(top); err != nil {
		return nil, err
	}
	if renamed, err := overlay.HasPartial(ctx, r, top); err != nil || renamed {
		return nil, errors.Join(err, s.renamedStopped(renamed))
	}
	if unprivileged {
		if err := s.launcher.handed.Add(s.session.ID, r, top); err != nil {
			return nil, err
		}
	}
	b := &layerReader{box: s.session.Sandbox, record: r, store: top, inside: true, unprivileged: unprivileged, image: layerImages{s.launcher.images}.Mount}
	trees, err := b.trees()
	if err != nil {
		return nil, err
	}
	partial, err := overlay.PartialIn(top)
	if err != nil {
		return nil, errors.Join(err, closeAllTrees(trees))
	}
	for i := range trees {
		trees[i].Partial = slices.Contains(partial, trees[i].Path)
	}
	return trees, nil
}

// renamedStopped is the error for the layers of a stopped sandbox in which a directory was renamed: the content
// is on the host still.
func (s *Sandbox) renamedStopped(renamed bool) error {
	if !renamed {
		return nil
	}
	return &fault.SandboxError{ID: s.session.ID, Err: errors.New("has stopped, and a directory of the host was renamed in it; to read its changes, replace it with up, and begin a new one with the snapshot that up names")}
}

// unlessRemoved waits for the end of a removal of the sandbox, if one is under way. It returns
// ErrNotFound if the sandbox was removed, and err otherwise.
func (s *Sandbox) unlessRemoved(ctx context.Context, err error) error {
	if errors.As(err, new(*fault.SandboxError)) || ctx.Err() != nil {
		return err
	}
	if state, waited := statedir.Await(ctx, s.launcher.Sandboxes(), s.session.ID); waited == nil {
		state.Release()
	}
	if s.session.Present() {
		return err
	}
	return &fault.SandboxError{ID: s.session.ID, Err: fault.ErrNotFound}
}
