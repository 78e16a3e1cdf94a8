package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
)

// Prune removes the rest of sandboxes that are not up, and returns their ids: sandboxes whose
// PID 1 has ended, sandboxes that are tied to an ended process, and half-made sandboxes. Any
// number of processes may call Prune. Prune does not touch a sandbox that is up, unless its removal has
// begun in a process that was killed, or its directory in the state root is missing: this directory says
// that the sandbox is up. If a killed process has left such a sandbox half changed, Prune finishes the
// change. A stopped sandbox with unapplied files on disk stays, too: see [Launcher.Unapplied].
func (l *Launcher) Prune(ctx context.Context) ([]string, error) {
	ids, err := l.parts.KnownIDs()
	if err != nil {
		return nil, err
	}
	var (
		pruned []string
		errs   []error
	)
	for _, id := range ids {
		switch removed, err := l.pruneOne(ctx, id); {
		case err != nil:
			errs = append(errs, fmt.Errorf("prune sandbox %s: %w", id, err))
		case removed:
			pruned = append(pruned, id)
		}
	}
	errs = append(errs, l.pruneDrafts(), l.trash.Empty(ctx), l.networks().Prune(ctx, l.parts.KnownIDs))
	return pruned, errors.Join(errs...)
}

// Traced says whether something of a sandbox is left, also where its directory in the state
// root is lost.
func (l *Launcher) Traced(id string) (bool, error) { return l.parts.Traced(id) }

// pruneOne removes a sandbox. It does nothing if the sandbox is up, if another process holds it,
// or if another process has removed it meanwhile.
func (l *Launcher) pruneOne(ctx context.Context, id string) (removed bool, err error) {
	if may, err := l.mayPrune(id); !may || err != nil {
		return false, errors.Join(err, l.finishChange(ctx, id))
	}
	state, err := statedir.HoldOrphan(l.Sandboxes(), id)
	hasDirectory := !errors.Is(err, fs.ErrNotExist)
	if !hasDirectory {
		// The sandbox has traces only. A safe removal must own the id first.
		state, err = statedir.Make(l.Sandboxes(), id)
	}
	if errors.Is(err, statedir.ErrHeld) || errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	// The sandbox can have come up before the hold.
	if may, err := l.mayPrune(id); !may || err != nil || l.hasWork(id) {
		state.Release()
		return false, err
	}
	if !hasDirectory {
		if isTraced, err := l.parts.Traced(id); err != nil || !isTraced {
			return false, errors.Join(err, state.Remove())
		}
	}
	err = l.networks().KeepLevelOf(id)
	if err == nil {
		err = l.removeHeld(ctx, id, state)
	}
	if err != nil {
		state.Release()
		return false, err
	}
	return true, nil
}

// finishChange ends the half-done work of a killed process in a sandbox that is up. It does nothing if
// another process holds the sandbox.
func (l *Launcher) finishChange(ctx context.Context, id string) error {
	r, unreadable := record.Read(l.Dir(id))
	isServed, err := l.networks().IsServed(ctx, id, r)
	if unreadable != nil || err != nil || isServed && !r.HalfDone() {
		return err
	}
	state, err := statedir.Hold(l.Sandboxes(), id)
	if errors.Is(err, statedir.ErrHeld) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer state.Release()
	s, err := l.open(id)
	if err != nil {
		return err
	}
	defer s.Release()
	if err = s.finish(ctx); errors.Is(err, fault.ErrNotRunning) { // it has just ended
		return nil
	}
	return err
}

// mayPrune says whether a sandbox is not up, or has a missing or damaged record, or its removal has begun.
// During a removal a killed PID 1 can still seem to be up. mayPrune returns an error if the record does not
// tell: see [record.IsUnknown].
func (l *Launcher) mayPrune(id string) (bool, error) {
	r, err := record.Read(l.Dir(id))
	if record.IsUnknown(err) {
		return false, err
	}
	if err != nil {
		return true, nil //nolint:nilerr // a missing or damaged record is an answer
	}
	return !r.Stays() || statedir.RemovalBegun(l.Dir(id)), nil
}
