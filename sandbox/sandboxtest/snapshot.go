package sandboxtest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// A snapshot has the files of a sandbox: those of its overlays, its own workspace and its
// home.
type snapshot struct {
	files, host tree
	layers      []overlay
}

// Snapshot implements [sandbox.Snapshotter].
func (i *instance) Snapshot(_ context.Context, name string) error {
	if i.info.Config.Storage != sandbox.StorageDisk {
		return fmt.Errorf("a snapshot %w: its files are in memory; make it with --storage disk", sandbox.ErrUnavailable)
	}
	i.fake.mu.Lock()
	defer i.fake.mu.Unlock()
	root, done, err := i.lockRoot()
	if err != nil {
		return err
	}
	defer done()
	if i.fake.snapshots[name] != nil {
		return fmt.Errorf("snapshot %s %w; choose another name, or remove it first", name, sandbox.ErrExists)
	}
	files, err := readTree(root)
	if err != nil {
		return err
	}
	maps.DeleteFunc(files, func(name string, _ node) bool {
		return i.isTemporary(name) || i.info.Config.Workspace != "" && strings.HasPrefix(name, "workspace/") // the host's
	})
	s := &snapshot{files: files, host: maps.Clone(i.host)}
	for _, o := range i.layers {
		s.layers = append(s.layers, *o)
	}
	if i.fake.snapshots == nil {
		i.fake.snapshots = map[string]*snapshot{}
	}
	i.fake.snapshots[name] = s
	i.joined = nil
	return nil
}

// snapshotLocked finds the snapshot that a sandbox is to begin with, nil for none.
func (f *Fake) snapshotLocked(r sandbox.Request, c sandbox.Config) (*snapshot, error) {
	if r.From == "" {
		return nil, nil
	}
	s := f.snapshots[r.From]
	if s == nil {
		return nil, fmt.Errorf("snapshot %s %w", r.From, sandbox.ErrNotFound)
	}
	for _, o := range s.layers {
		if !slices.Contains(c.Overlays, o.path) {
			return nil, &sandbox.ConfigError{Reason: fmt.Sprintf("snapshot %s has files of %s, which this sandbox has no layer for: overlay it", r.From, o.path)}
		}
	}
	return s, nil
}

// Snapshots implements [sandbox.SnapshotKeeper].
func (f *Fake) Snapshots(context.Context) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.snapshots)), nil
}

// RemoveSnapshot implements [sandbox.SnapshotKeeper].
func (f *Fake) RemoveSnapshot(_ context.Context, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.snapshots[name] == nil {
		return fmt.Errorf("snapshot %s %w", name, sandbox.ErrNotFound)
	}
	delete(f.snapshots, name)
	return nil
}
