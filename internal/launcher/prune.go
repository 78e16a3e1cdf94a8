package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/statedir"
)

// Prune removes the rest of sandboxes that are not up, and returns their ids: sandboxes
// whose PID 1 has ended, sandboxes that are tied to an ended process, and half-made ones.
// It does not touch a sandbox that is up, however often and from however many processes it
// is called, as long as nobody has removed its directory in the state root: that directory
// says that it is up. A stopped sandbox with unapplied files on disk stays, too: see
// [Launcher.Unapplied].
func (l *Launcher) Prune(ctx context.Context) ([]string, error) {
	ids, err := l.known()
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
			errs = append(errs, fmt.Errorf("remove sandbox %s: %w", id, err))
		case removed:
			pruned = append(pruned, id)
		}
	}
	errs = append(errs, l.pruneDrafts(), l.trash.Empty(ctx))
	return pruned, errors.Join(errs...)
}

// directories are the ids of the sandboxes with a directory in the state root.
func (l *Launcher) directories() ([]string, error) {
	if err := l.CheckRoot(); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(l.Sandboxes())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		if e.IsDir() {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// known are the ids of all sandboxes of which there is a trace: in the state
// root, or, where somebody emptied that, in the kernel.
func (l *Launcher) known() ([]string, error) {
	ids, err := l.directories()
	if err != nil {
		return nil, err
	}
	traces, err := l.traces()
	if err != nil {
		return nil, err
	}
	ids = append(ids, traces...)
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// Traced says whether something of a sandbox is left where its directory in the
// state root is not, as after somebody has emptied that.
func (l *Launcher) Traced(id string) (bool, error) {
	if err := l.CheckRoot(); err != nil {
		return false, err
	}
	traces, err := l.traces()
	return slices.Contains(traces, id), err
}

// traces are the ids of the sandboxes that have a cgroup, an image or a range of user ids,
// except those that have another id by now.
func (l *Launcher) traces() ([]string, error) {
	host, err := l.host()
	if err != nil {
		return nil, err
	}
	groups, err := host.Children(record.CgroupParent)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, name := range groups {
		if id, ours := l.CgroupID(name); ours {
			ids = append(ids, id)
		}
	}
	imaged, err := l.ImageOwners()
	if err != nil {
		return nil, err
	}
	ids = append(ids, imaged...)
	owners, err := l.ids().Owners()
	if err != nil {
		return nil, err
	}
	for _, o := range owners {
		ids = append(ids, o.Sandbox)
	}
	moved, err := l.moved()
	return slices.DeleteFunc(ids, func(id string) bool { return moved[id] != "" }), err
}

// pruneOne removes a sandbox unless it is up, or somebody holds it, or has
// removed it since it was seen.
func (l *Launcher) pruneOne(ctx context.Context, id string) (removed bool, err error) {
	if l.stays(id) {
		return false, nil
	}
	state, err := statedir.HoldOrphan(l.Sandboxes(), id)
	hasDirectory := !errors.Is(err, fs.ErrNotExist)
	if !hasDirectory {
		// Its trace is older than its directory, or was left without one: to
		// remove it safely is to own the id first.
		state, err = statedir.Make(l.Sandboxes(), id)
	}
	if errors.Is(err, statedir.ErrHeld) || errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if l.stays(id) || l.hasWork(id) { // since it is held: it came up in between
		state.Release()
		return false, nil
	}
	if !hasDirectory {
		traces, err := l.traces()
		if err != nil || !slices.Contains(traces, id) {
			return false, errors.Join(err, state.Remove())
		}
	}
	if err := l.removeHeld(ctx, id, state); err != nil {
		state.Release()
		return false, err
	}
	return true, nil
}

// stays says that a sandbox is not to be pruned.
func (l *Launcher) stays(id string) bool {
	r, err := record.Read(l.Dir(id))
	return err == nil && r.Stays()
}
