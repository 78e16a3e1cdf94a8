package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/jobs"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Remove kills all processes of a sandbox and removes the sandbox, in any state, by its id
// alone. A missing sandbox is no error, and neither is a sandbox that others remove meanwhile.
// After an error another call, or [Launcher.Prune], removes the rest. The sandbox's level of
// sensitivity ends.
//
// Errors: [launch.ErrBusy] if another process makes or changes the sandbox for too long;
// [launch.ErrNotFound] for a container that is no sandbox.
func (l *Launcher) Remove(ctx context.Context, id string) error {
	if err := l.removeWhere(ctx, id, true, func(record.Record, error) bool { return true }); err != nil {
		return err
	}
	return l.ForgetLevel(id, 0)
}

// RemoveIf is Remove if may returns true for the owner of the sandbox. Otherwise, or if the owner
// is unknown, it does nothing. It calls may while no other process can change the sandbox:
// before, another user's sandbox may have got the name.
func (l *Launcher) RemoveIf(ctx context.Context, id string, may func(owner uint32) bool) error {
	return l.removeWhere(ctx, id, true, func(r record.Record, err error) bool { return err == nil && may(r.UID) })
}

// Abandon is RemoveIf for a sandbox whose owner has not removed it: the level stays. Nil allows all.
func (l *Launcher) Abandon(ctx context.Context, id string, may func(owner uint32) bool) error {
	return l.removeWhere(ctx, id, false, func(r record.Record, err error) bool {
		return may == nil || err == nil && may(r.UID)
	})
}

// removeOnly is Remove if the sandbox has this PID 1.
func (l *Launcher) removeOnly(ctx context.Context, id string, init process.ID) error {
	return l.removeWhere(ctx, id, true, func(r record.Record, err error) bool { return err != nil || r.Init == init })
}

// removeWhere is Remove if is returns true for the sandbox's record.
func (l *Launcher) removeWhere(ctx context.Context, id string, endsLevel bool, is func(record.Record, error) bool) error {
	if !record.IsName(id) {
		return nil
	}
	state, err := l.own(ctx, id)
	if state == nil || err != nil {
		return err
	}
	r, err := record.Read(state.Path)
	if !is(r, err) {
		state.Release()
		return nil
	}
	err = l.clearHeld(ctx, id, state)
	if err == nil && endsLevel {
		err = l.networks().ForgetLevel(id, r.UID)
	}
	if err != nil {
		// The directory stays for another try, and the ids with it: something
		// may still run under them.
		state.Release()
		return err
	}
	return state.Remove()
}

// ForgetLevel ends the level of a user's name that no sandbox has.
func (l *Launcher) ForgetLevel(id string, uid uint32) error {
	if !record.IsName(id) {
		return nil
	}
	if level, err := l.networks().Level(id, uid); err == nil && !level.Above(spec.SensitivityPublic) {
		return nil // there is no file
	}
	state, err := statedir.Make(l.Sandboxes(), id)
	if errors.Is(err, fs.ErrExist) {
		return nil // another process makes a sandbox with this id
	}
	if err != nil {
		return err
	}
	return errors.Join(l.networks().ForgetLevel(id, uid), state.Remove())
}

// own takes hold of the id of a sandbox to remove, with or without a directory. It returns nil if
// there is nothing to remove.
func (l *Launcher) own(ctx context.Context, id string) (*statedir.Dir, error) {
	for {
		state, err := statedir.Await(ctx, l.Sandboxes(), id)
		if err == nil {
			return state, nil
		}
		if errors.Is(err, statedir.ErrHeld) {
			return nil, &launch.SandboxError{ID: id, Err: err}
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		traced, err := l.find.traced(id)
		if err != nil {
			return nil, err
		}
		if !traced {
			return nil, l.unlessContainer(id, fmt.Errorf("%w: this is a container; remove it with delete", launch.ErrNotFound))
		}
		// The sandbox has no directory. A safe removal must own the id first.
		state, err = statedir.Make(l.Sandboxes(), id)
		if !errors.Is(err, fs.ErrExist) { // else another process makes a sandbox with this id
			return state, err
		}
	}
}

// removeHeld removes a sandbox whose directory the caller holds, and the directory itself.
func (l *Launcher) removeHeld(ctx context.Context, id string, state *statedir.Dir) error {
	if err := l.clearHeld(ctx, id, state); err != nil {
		return err
	}
	return state.Remove()
}

// clearHeld removes all parts of a sandbox except its directory.
func (l *Launcher) clearHeld(ctx context.Context, id string, state *statedir.Dir) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statedir.CleanupTime)
	defer cancel()
	statedir.NoteRemoval(state.Path)
	if err := l.dropDamagedNames(id, state.Path); err != nil {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	base, err := l.removeKernel(ctx, id, state.Path)
	if err == nil {
		err = l.networks().Disconnect(ctx, id)
	}
	if err == nil {
		err = errors.Join(jobs.TruncateOutputs(state.Path), l.removeImages(id, state.Path), l.releaseIDs(id, base))
	}
	l.sessions.Forget(id)
	l.children.Reap()
	if err != nil {
		// Without its record the sandbox is no longer up, also for the process that it is tied to.
		err = errors.Join(err, erase.IgnoreMissing(os.Remove(filepath.Join(state.Path, record.FileName))))
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	return nil
}

// dropDamagedNames removes a file of names that cannot be read or that names objects of others.
// Without this file the removal looks for the sandbox's objects by its id. The caller removes
// the sandbox and must hold its directory, dir.
func (l *Launcher) dropDamagedNames(id, dir string) error {
	if _, _, err := l.NamesOf(id); err == nil {
		return nil
	}
	return os.Remove(filepath.Join(dir, record.NamesFile))
}

// removeKernel removes the cgroups of a sandbox and its state in libcontainer, if they exist. It
// returns the first id of the sandbox's range of user ids, or 0 if the record does not have it.
func (l *Launcher) removeKernel(ctx context.Context, id, dir string) (idBase uint32, err error) {
	group, err := l.find.group(id)
	if err != nil {
		return 0, err
	}
	if r, unread := record.Read(dir); unread == nil {
		idBase = r.IDBase
		// PID 1 leads to the store. Once PID 1 has ended, nothing is handed out any more.
		top := l.handed.TakeOpen(id, dir, r)
		defer func() { l.handed.Leave(id, r, top, err == nil) }()
		l.abandonImage(r)
		// In the host's pid namespace the end of PID 1 ends no other process.
		if r.Config.PID != spec.PIDHost && l.vanish(ctx, id, r.Init, group) == nil {
			return idBase, nil
		}
	}
	if err := errors.Join(group.LiftThrottles(), group.Kill(ctx)); err != nil {
		return 0, err
	}
	err = l.discardContainer(id, group)
	if errors.Is(err, container.ErrForeign) { // the container is not the sandbox's, and stays
		err = nil
	}
	return idBase, errors.Join(err, group.Delete(ctx))
}

// discardContainer removes the state of the sandbox's container. A claim that was cut short leaves the
// state with the id of the blank.
func (l *Launcher) discardContainer(id string, group *cgroups.Group) error {
	names, _, err := l.NamesOf(id)
	if err == nil && names.Made != id {
		err = container.DiscardIn(l.State, names.Made, group.Path())
	}
	return errors.Join(err, container.DiscardIn(l.State, id, group.Path()))
}

// releaseIDs releases the sandbox's range of user ids. If base is 0, it releases all ranges that
// are claimed in the sandbox's name.
func (l *Launcher) releaseIDs(id string, base uint32) error {
	names, _, err := l.NamesOf(id)
	if err != nil {
		return err
	}
	if base != 0 {
		return l.ids.Release(names.Made, base)
	}
	return l.ids.ReleaseAll(names.Made)
}

// vanishTime is how long a PID 1 that was killed may take to end in the quick
// way of removing a sandbox.
const vanishTime = 100 * time.Millisecond

// vanish is the quick way to remove a healthy sandbox. The end of PID 1 ends its pid namespace, so
// the groups are empty, and vanish does not search each hierarchy for processes. If it returns an
// error, the caller must remove the sandbox the thorough way, which repeats all these steps.
func (l *Launcher) vanish(ctx context.Context, id string, init process.ID, group *cgroups.Group) error {
	if l.paused(id) { // a process in the v1 freezer does not end
		return &launch.SandboxError{ID: id, Err: launch.ErrPaused}
	}
	if err := group.LiftThrottles(); err != nil {
		return err
	}
	if err := init.End(vanishTime); err != nil {
		return err
	}
	if err := group.Delete(ctx); err != nil {
		return err
	}
	return l.discardContainer(id, group)
}
