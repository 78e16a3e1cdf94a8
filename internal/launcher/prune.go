package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
)

// Prune removes what is left of sandboxes whose process died, and returns
// their ids. Sandboxes that live are not touched, however often and from
// however many processes it is called, as long as nobody else removed their
// directory in the state root: that is how they are known to live.
func (l *Launcher) Prune(ctx context.Context) ([]string, error) {
	host, err := cgroups.Probe()
	if err != nil {
		return nil, err
	}
	ids, err := l.known(host)
	if err != nil {
		return nil, err
	}
	var (
		pruned []string
		errs   []error
	)
	for _, id := range ids {
		switch removed, err := l.pruneOne(ctx, host, id); {
		case err != nil:
			errs = append(errs, fmt.Errorf("remove sandbox %s: %w", id, err))
		case removed:
			pruned = append(pruned, id)
		}
	}
	living, err := l.directories()
	if err == nil {
		err = l.ids().releaseUnowned(living)
	}
	return pruned, errors.Join(append(errs, err)...)
}

// directories are the ids of the sandboxes with a directory in the state root:
// after a prune those that live, or could not be removed.
func (l *Launcher) directories() ([]string, error) {
	entries, err := os.ReadDir(l.sandboxes())
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
func (l *Launcher) known(host *cgroups.Host) ([]string, error) {
	ids, err := l.directories()
	if err != nil {
		return nil, err
	}
	traces, err := l.traces(host)
	if err != nil {
		return nil, err
	}
	ids = append(ids, traces...)
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// traces are the ids of the sandboxes that have a cgroup or a range of user ids.
func (l *Launcher) traces(host *cgroups.Host) ([]string, error) {
	groups, err := host.Children(cgroupParent)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, name := range groups {
		if id, ours := strings.CutPrefix(name, l.cgroupPrefix()); ours {
			ids = append(ids, id)
		}
	}
	owners, err := l.ids().owners()
	if err != nil {
		return nil, err
	}
	for _, o := range owners {
		if o.claiming || isID(o.id) {
			ids = append(ids, o.id)
		}
	}
	return ids, nil
}

// pruneOne removes a sandbox unless somebody holds it, or has removed it since
// it was seen.
func (l *Launcher) pruneOne(ctx context.Context, host *cgroups.Host, id string) (removed bool, err error) {
	state, err := holdOrphan(l.sandboxes(), id)
	hasDirectory := !errors.Is(err, fs.ErrNotExist)
	if !hasDirectory {
		// Its trace is older than its directory, or was left without one: to
		// remove it safely is to own the id first.
		state, err = makeState(l.sandboxes(), id)
	}
	if errors.Is(err, errHeld) || errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if !hasDirectory {
		traces, err := l.traces(host)
		if err != nil || !slices.Contains(traces, id) {
			return false, errors.Join(err, state.remove())
		}
	}
	ctx, cancel := context.WithTimeout(ctx, cleanupTime)
	defer cancel()
	if err := errors.Join(l.remove(ctx, host, id), l.ids().releaseAll(id)); err != nil {
		return false, errors.Join(err, state.held.Close())
	}
	return true, state.remove()
}
