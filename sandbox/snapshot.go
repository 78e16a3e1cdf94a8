package sandbox

import "context"

// From has a sandbox begin with the files of a snapshot: those in overlays, in the
// sandbox's own workspace and in its home. Nothing is copied, and any number of sandboxes
// can begin with one. The Config has the overlays of the snapshot.
func From(snapshot string) CreateOption {
	return func(o *createOptions) { o.From = snapshot }
}

// Snapshot keeps the sandbox's present files under a name, for sandboxes to begin with.
// The sandbox stands still for some milliseconds, with any amount of files. Binds from the
// host, /tmp and /var/tmp are not in it. The sandbox needs storage "disk".
//
// Errors: ErrExists, ErrBusy if something in the sandbox has a file open there or its
// directory, ErrUnavailable, ErrDamaged.
func (s *Sandbox) Snapshot(ctx context.Context, name string) error {
	return withAbility(s, "snapshot", func(k Snapshotter) error { return k.Snapshot(ctx, name) })
}

// Discard throws away the writes to the sandbox's overlays: they show the host's files
// again, or the files with which the sandbox has begun.
//
// Errors: ErrBusy if something in the sandbox has a file open there or its directory,
// *ConfigError if the sandbox has no overlay.
func (s *Sandbox) Discard(ctx context.Context) error {
	return withAbility(s, "discard", func(k Snapshotter) error { return k.Discard(ctx) })
}

// Snapshots are the names of those that there are, of the provider that the Manager
// prefers.
func (m *Manager) Snapshots(ctx context.Context) ([]string, error) {
	return preferred(m, "snapshots", func(k SnapshotKeeper) ([]string, error) { return k.Snapshots(ctx) })
}

// RemoveSnapshot removes one. Sandboxes that have begun with it keep their files.
//
// Errors: ErrNotFound.
func (m *Manager) RemoveSnapshot(ctx context.Context, name string) error {
	k, err := preferredAbility[SnapshotKeeper](m, "snapshots")
	if err != nil {
		return err
	}
	return k.RemoveSnapshot(ctx, name)
}
