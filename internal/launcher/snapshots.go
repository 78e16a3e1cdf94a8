package launcher

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/overlay"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/integrity"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
)

// maxSnapshots is the value of [Launcher.maxSnapshots].
const maxSnapshots = 64

// Snapshot keeps the sandbox's present files in overlays, in its own workspace and in its home.
// Any number of sandboxes can begin with the snapshot. Nothing is copied; the sandbox is frozen
// for some milliseconds.
//
// Errors: *[fault.ConfigError], [fault.ErrExists], [fault.ErrBusy] if a process in the sandbox
// has open files or its working directory in one of these places, [fault.ErrUnavailable] if the
// sandbox's files are not on disk, and the errors of Pause.
func (s *Sandbox) Snapshot(ctx context.Context, name string) error {
	if !record.IsName(name) {
		return fault.Refusal(fmt.Errorf("invalid name %.64q of a snapshot: use 1 to %d letters, digits, and any of _+-. and begin with a letter, a digit or _", name, record.MaxName))
	}
	if uid := s.session.Current().UID; uid != 0 {
		leave, err := s.launcher.snapshotting.enter(ctx, uid)
		if err != nil {
			return err
		}
		defer leave()
		if err := s.launcher.roomForSnapshot(ctx, uid); err != nil {
			return err
		}
	}
	return s.withLock(ctx, func() error {
		if !s.session.Current().Backend(s.launcher.Roots).Durable() {
			return fmt.Errorf("a snapshot %w: its files are in memory; make it with --storage disk", fault.ErrUnavailable)
		}
		if hasSnapshot(s.launcher.Roots, name) {
			return fmt.Errorf("snapshot %s %w; choose another name, or remove it first", name, fault.ErrExists)
		}
		if err := s.verify(ctx, integrity.ShortOfRoom(s.launcher.Data)); err != nil {
			return err
		}
		return s.session.Overlay.Snapshot(ctx, name)
	})
}

// A turn lets only one call of each user go on at a time: no other call can take the room that a
// call has found.
type turn struct {
	users sync.Map // the [semaphore.Weighted] of each user
}

// enter waits until no other call of the user goes on.
func (t *turn) enter(ctx context.Context, uid uint32) (leave func(), err error) {
	known, _ := t.users.LoadOrStore(uid, semaphore.NewWeighted(1))
	place := known.(*semaphore.Weighted)
	if err := place.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	return func() { place.Release(1) }, nil
}

// roomForSnapshot refuses a snapshot above the user's bound, which counts snapshots and images.
// An image can outlive its snapshot: a fork, and a snapshot of a fork, keep the images that they
// began with.
func (l *Launcher) roomForSnapshot(ctx context.Context, uid uint32) error {
	names, err := l.Snapshots(ctx, uid)
	if err != nil {
		return err
	}
	var frozen []string
	for _, name := range names {
		images, err := descriptor.Glob(l.SnapshotDir(name), "*"+record.ImageEnd)
		if err != nil {
			return err
		}
		frozen = append(frozen, images...)
	}
	stores, err := l.Images()
	if err != nil {
		return err
	}
	moved, err := l.parts.MovedIDs()
	if err != nil {
		return err
	}
	for _, image := range stores {
		made, _ := l.CgroupID(image)
		id := cmp.Or(moved[made], made)
		if r, err := record.Read(l.Dir(id)); err == nil && r.UID == uid && r.Image != image {
			frozen = append(frozen, l.ImagePath(image))
		}
	}
	inodes := map[uint64]bool{}
	for _, image := range frozen {
		var st unix.Stat_t
		if unix.Lstat(image, &st) == nil { // else the image was just removed
			inodes[st.Ino] = true
		}
	}
	if max(len(names), len(inodes)) >= l.maxSnapshots {
		return fmt.Errorf("more than %d snapshots of one user, with the removed snapshots that a sandbox or another snapshot still uses: another %w; remove some snapshots, and the sandboxes that began with them", l.maxSnapshots, fault.ErrUnavailable)
	}
	return nil
}

// pruneDrafts removes the drafts of snapshots that no sandbox needs.
func (l *Launcher) pruneDrafts() error {
	ids, err := l.parts.Directories()
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, id := range ids {
		r, err := record.Read(l.Dir(id))
		if record.IsUnknown(err) {
			return nil // any draft can be of this sandbox
		}
		if r.Switch != nil {
			wanted[r.Switch.Draft] = true
		}
	}
	return l.layers.PruneDrafts(wanted)
}

// Snapshots returns the names of the snapshots that a user may use.
func (l *Launcher) Snapshots(_ context.Context, uid uint32) ([]string, error) {
	return l.layers.Snapshots(uid)
}

// RemoveSnapshot removes a snapshot. Sandboxes that have begun with the snapshot keep its
// layers.
func (l *Launcher) RemoveSnapshot(ctx context.Context, name string, uid uint32) error {
	return l.layers.RemoveSnapshot(ctx, name, uid)
}

// Beginning returns the part of a snapshot's configuration that a fork takes over.
//
// Errors: [fault.ErrNotFound] for a snapshot that the user may not use.
func (l *Launcher) Beginning(_ context.Context, snapshot string, uid uint32) (protocol.Beginning, error) {
	s, err := l.layers.ReadSnapshot(snapshot, uid)
	if err != nil {
		return protocol.Beginning{}, err
	}
	return beginningOf(&s), nil
}

func beginningOf(s *overlay.Snapshot) protocol.Beginning {
	b := protocol.Beginning{Overlays: slices.Clone(s.Config.Overlays), Cwd: s.Config.Cwd}
	t := s.ImageTree()
	switch {
	case t != nil:
		b.Image = t.Image
	case s.Config.Image != "" && len(b.Overlays) == 0:
		b.Cwd = "" // a directory of the image, which is no part of the snapshot
	}
	return b
}

// fork gives the new sandbox the files of the requested snapshot, if there is one.
func (m *creation) fork(ctx context.Context) error {
	from := m.Request.From
	if from == "" {
		return nil
	}
	s, err := m.launcher.layers.ReadSnapshot(from, m.From.UID)
	if err != nil {
		return err
	}
	if err := checkSnapshot(m.launcher.Roots, from, s); err != nil {
		return err
	}
	if s.Config.Sensitivity.Above(m.Record.Config.Sensitivity) { // another one since the record was made
		return fault.Refusal(fmt.Errorf("snapshot %s was replaced meanwhile, and its sensitivity is %s now; try again", from, s.Config.Sensitivity))
	}
	box := record.NewSandbox(m.launcher.Roots, m.ID, nil, m.Record)
	if m.Record, err = m.launcher.layers.Files(box, nil).Fork(ctx, from, s); err != nil {
		return err
	}
	return cmp.Or(checkMountedSnapshot(ctx, m.launcher.Roots, m.Record), ctx.Err())
}
