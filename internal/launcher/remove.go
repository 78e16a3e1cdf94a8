package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/jobs"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/part"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Remove kills all processes of a sandbox and removes the sandbox, in any state, by its id
// alone. A missing sandbox is no error, and neither is a sandbox that others remove meanwhile.
// After an error another call, or [Launcher.Prune], removes the rest. The sandbox's level of
// sensitivity ends.
//
// Errors: [fault.ErrBusy] if another process makes or changes the sandbox for too long;
// [fault.ErrNotFound] for a container that is no sandbox.
func (l *Launcher) Remove(ctx context.Context, id string) error {
	_, err := l.RemoveIf(ctx, id, Condition{})
	return err
}

// A Condition restricts a removal. The zero value permits the removal of any sandbox.
type Condition struct {
	// Owner returns whether the sandbox of this user may be removed. Nil permits all users, and also the
	// removal of a sandbox with a damaged record.
	Owner func(uid uint32) bool
	// Created is the time at which the sandbox was made. A sandbox with another time stays. The zero time
	// permits all times. A damaged record has no time, and Created does not protect its sandbox.
	Created time.Time
	// init is PID 1 of the sandbox. A sandbox with another PID 1 stays. The zero ID permits all sandboxes. A damaged
	// record has no PID 1, and init does not protect its sandbox.
	init process.ID
}

// permits checks a sandbox by its record, or by the error of reading the record.
func (c Condition) permits(r record.Record, err error) bool {
	if err != nil {
		return c.Owner == nil
	}
	return (c.Owner == nil || c.Owner(r.UID)) && (c.Created.IsZero() || c.Created.Equal(r.Created)) &&
		(c.init == process.ID{} || c.init == r.Init)
}

// RemoveIf is Remove for a sandbox that the condition permits. The condition is checked while no other
// process can change the sandbox: before, another sandbox may have got the name. RemoveIf returns false if
// it has removed nothing: there is no sandbox with the name, or the condition does not permit that sandbox.
func (l *Launcher) RemoveIf(ctx context.Context, id string, only Condition) (bool, error) {
	if only.Owner != nil {
		return l.removePermitted(ctx, id, only, ofOwner)
	}
	removed, err := l.removePermitted(ctx, id, only, ofOwnerAndRoot)
	if err == nil && only.Created.IsZero() {
		err = l.ForgetLevel(id, 0) // the name may have had no sandbox
	}
	return removed, err
}

// Abandon is RemoveIf for a sandbox whose owner has not removed it: the level stays.
func (l *Launcher) Abandon(ctx context.Context, id string, only Condition) (bool, error) {
	return l.removePermitted(ctx, id, only, ofNobody)
}

// ofOwner, ofOwnerAndRoot and ofNobody are the users whose levels a removal ends.
func ofOwner(owner uint32) []uint32        { return []uint32{owner} }
func ofOwnerAndRoot(owner uint32) []uint32 { return []uint32{owner, 0} }
func ofNobody(uint32) []uint32             { return nil }

// removePermitted removes the sandbox if the condition permits that. It returns false if it has removed nothing.
// levelsToEnd returns, for the owner, the users whose levels of sensitivity end.
func (l *Launcher) removePermitted(
	ctx context.Context, id string, only Condition, levelsToEnd func(owner uint32) []uint32,
) (bool, error) {
	if !record.IsName(id) {
		return false, nil
	}
	state, err := l.holdID(ctx, id)
	if state == nil || err != nil {
		return false, err
	}
	r, err := l.sessions.Record(id)
	if !only.permits(r, err) {
		state.Release()
		return false, nil
	}
	isFirst := !statedir.RemovalBegun(state.Path)
	x, err := l.beginRemoval(id, state, recordOrNil(r, err))
	if err == nil {
		if isFirst {
			x.endCommands(ctx)
		}
		x.levels = levelsToEnd(r.UID)
		if l.aside.finishes(ctx, x) {
			return true, nil
		}
		err = x.finish(ctx)
	}
	if err == nil {
		err = x.endLevels()
	}
	if err != nil {
		// The directory stays for another try, and the ids with it: something
		// may still run under them.
		state.Release()
		return false, err
	}
	err = state.Remove()
	return err == nil, err
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

// holdID takes hold of the id of a sandbox to remove, with or without a directory. It returns nil if
// there is nothing to remove.
func (l *Launcher) holdID(ctx context.Context, id string) (*statedir.Dir, error) {
	if l.isKeptBlank(id) {
		return nil, nil
	}
	for {
		state, err := statedir.Await(ctx, l.Sandboxes(), id)
		if err == nil {
			return state, nil
		}
		if errors.Is(err, statedir.ErrHeld) {
			return nil, &fault.SandboxError{ID: id, Err: err}
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		traced, err := l.parts.Traced(id)
		if err != nil {
			return nil, err
		}
		if !traced {
			return nil, l.unlessContainer(id, fmt.Errorf("%w: this is a container; remove it with delete", fault.ErrNotFound))
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
	x, err := l.beginRemoval(id, state, recordOrNil(record.Read(state.Path)))
	if err != nil {
		return err
	}
	return x.finish(ctx)
}

// A removal is a sandbox that is being removed.
type removal struct {
	launcher *Launcher
	id       string
	state    *statedir.Dir
	parts    *part.Remains
	// levels are the users whose levels of the name end.
	levels []uint32
}

// recordOrNil returns nil if the record is missing or damaged.
func recordOrNil(r record.Record, err error) *record.Record {
	if err != nil {
		return nil
	}
	return &r
}

// beginRemoval notes that the removal begins, and opens the parts of the sandbox. r is
// the record, or nil if it is missing or damaged. The caller must finish the removal.
func (l *Launcher) beginRemoval(id string, state *statedir.Dir, r *record.Record) (*removal, error) {
	x := &removal{launcher: l, id: id, state: state}
	x.finishJoin(r)
	statedir.NoteRemoval(state.Path)
	var err error
	if x.parts, err = l.parts.Open(id, state.Path, r); err != nil {
		return nil, x.giveUp(err)
	}
	return x, nil
}

// finishJoin ends the join of a killed process before the sandbox is removed: a directory of the host
// can have a part of the join.
func (x *removal) finishJoin(r *record.Record) {
	if r == nil || r.Join == nil || !r.Init.Lives() {
		return
	}
	s, err := x.launcher.open(x.id)
	if err != nil {
		return // the sandbox is removed nevertheless
	}
	defer s.Release()
	ctx, cancel := context.WithTimeout(context.Background(), statedir.CleanupTime)
	defer cancel()
	_ = s.session.Overlay.FinishJoin(ctx) // as above
}

// endCommands lets the commands of a sandbox that is up end by themselves, during its grace or until
// ctx ends. The next steps kill the rest.
func (x *removal) endCommands(ctx context.Context) {
	r := x.parts.Record
	if r == nil || !r.Init.Lives() {
		return
	}
	group, err := x.launcher.parts.Group(x.id) // holds descriptors that the steps after this do not need
	if err != nil {
		return
	}
	defer func() { _ = group.Close() }() // closes descriptors only
	jobs.EndAll(group, r.Config.Grace.Time(), ctx.Done())
}

// giveUp takes the record of a sandbox that cannot be removed whole, and describes the error. Without its
// record the sandbox is no longer up, also for the process that it is tied to.
func (x *removal) giveUp(err error) error {
	gone := erase.IgnoreMissing(os.Remove(filepath.Join(x.state.Path, record.FileName)))
	return fmt.Errorf("remove sandbox %s: %w", x.id, errors.Join(err, gone))
}

// finish removes all parts of the sandbox except its directory.
func (x *removal) finish(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statedir.CleanupTime)
	defer cancel()
	l := x.launcher
	err := l.parts.Release(ctx, x.parts)
	if err == nil {
		err = jobs.TruncateOutputs(x.state.Path)
	}
	l.sessions.Forget(x.id)
	l.children.Reap()
	if err != nil {
		return x.giveUp(err)
	}
	return nil
}

// endLevels ends the levels of the name while no other process can make a sandbox with the name.
func (x *removal) endLevels() error {
	var errs []error
	for _, uid := range x.levels {
		errs = append(errs, x.launcher.networks().ForgetLevel(x.id, uid))
	}
	return errors.Join(errs...)
}
