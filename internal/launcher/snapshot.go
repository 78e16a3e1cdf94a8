package launcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/integrity"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/store"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// maxSnapshots is the value of [Launcher.maxSnapshots].
const maxSnapshots = 64

const snapshotFile = "snapshot.json"

type snapshot struct {
	Version int         `json:"version"`
	UID     uint32      `json:"uid"`
	Created time.Time   `json:"created"`
	Config  spec.Config `json:"config"`
	// Places have the layers of each place, the uppermost first. Images are files
	// beside this one.
	Places map[string][]record.LayerRef `json:"places"`
	// Trees say which directories of the host were below.
	Trees []record.Tree `json:"trees,omitempty"`
}

// Snapshot keeps the sandbox's files as they are now, for any number of sandboxes to
// begin with: those in overlays, in its own workspace and in its home. Nothing is
// copied; the sandbox stands still for some milliseconds.
//
// Errors: *[launch.ConfigError], [launch.ErrExists], [launch.ErrBusy] where something
// in the sandbox has files open there or its directory, [launch.ErrUnavailable] where
// the sandbox's files are not on disk, and those of Pause.
func (s *Sandbox) Snapshot(ctx context.Context, name string) error {
	v := s.live
	if !record.IsName(name) {
		return configError(fmt.Errorf("snapshot %q: 1 to %d letters, digits and any of _+-. make a name", name, record.MaxName))
	}
	if uid := v.Current().UID; uid != 0 {
		leave, err := v.launcher.snapshotting.enter(ctx, uid)
		if err != nil {
			return err
		}
		defer leave()
		if err := v.launcher.roomForSnapshot(ctx, uid); err != nil {
			return err
		}
	}
	return v.alone(ctx, func() error {
		if v.Current().Image == "" {
			return fmt.Errorf("a snapshot %w: its files are in memory; make it with --storage disk", launch.ErrUnavailable)
		}
		dir := v.launcher.SnapshotDir(name)
		if _, err := os.Lstat(dir); err == nil {
			return fmt.Errorf("snapshot %s %w", name, launch.ErrExists)
		}
		if err := v.verify(ctx, integrity.ShortOfRoom(v.launcher.Data)); err != nil {
			return err
		}
		mine := func(p record.Place) bool { return p.Host == "" }
		return v.switchLayers(ctx, false, name, mine, newUpper)
	})
}

// A turn lets one call of each user go on at a time: the room that a call has found is
// not taken by another one.
type turn struct {
	mu    sync.Mutex
	users map[uint32]chan struct{}
}

// enter waits until no other call of the user goes on.
func (t *turn) enter(ctx context.Context, uid uint32) (leave func(), err error) {
	t.mu.Lock()
	if t.users == nil {
		t.users = map[uint32]chan struct{}{}
	}
	if t.users[uid] == nil {
		t.users[uid] = make(chan struct{}, 1)
	}
	place := t.users[uid]
	t.mu.Unlock()
	select {
	case place <- struct{}{}:
		return func() { <-place }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// roomForSnapshot holds a user to the bound. A snapshot of a fork has images of
// others, too, which stay when those are removed, as do those that a fork has.
func (l *Launcher) roomForSnapshot(ctx context.Context, uid uint32) error {
	names, err := l.Snapshots(ctx, uid)
	if err != nil {
		return err
	}
	var frozen []string
	for _, name := range names {
		images, err := filepath.Glob(filepath.Join(l.SnapshotDir(name), "*"+record.ImageEnd))
		if err != nil {
			return err
		}
		frozen = append(frozen, images...)
	}
	stores, err := l.Images()
	if err != nil {
		return err
	}
	for _, image := range stores {
		id, _, _ := strings.Cut(strings.TrimPrefix(image, l.CgroupPrefix()), "@")
		if r, err := record.Read(l.Dir(id)); err == nil && r.UID == uid && r.Image != image {
			frozen = append(frozen, l.ImagePath(image))
		}
	}
	inodes := map[uint64]bool{}
	for _, image := range frozen {
		var st unix.Stat_t
		if unix.Lstat(image, &st) == nil { // else it went this moment
			inodes[st.Ino] = true
		}
	}
	if max(len(names), len(inodes)) >= l.maxSnapshots {
		return fmt.Errorf("more than %d snapshots of one user, those with them that others began with: another %w; remove some, and the sandboxes that began with them", l.maxSnapshots, launch.ErrUnavailable)
	}
	return nil
}

// newUpper puts a new layer on those that a place has.
func newUpper(r *record.Record, p record.Place, n int) {
	if t := r.TreeAt(p.Path); t != nil {
		t.Layers = append([]int{n}, t.Layers...)
		return
	}
	s := r.Stacks[p.Path]
	s.Layers = append([]int{n}, s.Layers...)
	r.Stacks[p.Path] = s
}

// draftSnapshot makes the directory of the snapshot that a switch of layers is for,
// under another name.
func (l *Launcher) draftSnapshot(r record.Record) (err error) {
	all, err := statedir.OpenData(l.Data, record.SnapshotsName)
	if err != nil {
		return err
	}
	defer all.Close()
	s := snapshot{Version: 1, UID: r.UID, Created: time.Now().UTC(), Config: r.Config, Places: map[string][]record.LayerRef{}, Trees: r.Trees}
	draft := l.draftOf(r)
	if err := os.Mkdir(draft, 0o700); err != nil {
		return err
	}
	names := map[string]string{}
	link := func(image string) (string, error) {
		if names[image] == "" {
			names[image] = strconv.Itoa(len(names)) + record.ImageEnd
			if err := os.Link(l.ImagePath(image), filepath.Join(draft, names[image])); err != nil {
				return "", err
			}
		}
		return names[image], nil
	}
	for _, p := range r.Places() {
		var refs []record.LayerRef
		for _, own := range r.Own(p) {
			refs = append(refs, record.LayerRef{Image: r.Image, Dir: own})
		}
		for _, ref := range append(refs, r.Stacks[p.Path].Below...) {
			if ref.Image, err = link(ref.Image); err != nil {
				return err
			}
			s.Places[p.Path] = append(s.Places[p.Path], ref)
		}
	}
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(draft, snapshotFile), data, 0o600)
}

func (l *Launcher) draftOf(r record.Record) string {
	return filepath.Join(l.Data, record.SnapshotsName, r.Switch.Draft)
}

// endDraft gives a snapshot its name once nobody writes to its layers any more, and
// removes it where that has not come to be.
func (l *Launcher) endDraft(r record.Record) error {
	draft, name := l.draftOf(r), r.Switch.Snapshot
	if !r.Switch.Done {
		return l.trash.Discard(draft)
	}
	err := os.Rename(draft, l.SnapshotDir(name))
	switch {
	case err == nil:
		l.syncLater(r)
	case errors.Is(err, fs.ErrNotExist): // it was given its name before
		return nil
	case errors.Is(err, fs.ErrExist):
		err = fmt.Errorf("snapshot %s %w", name, launch.ErrExists)
		fallthrough
	default:
		err = errors.Join(err, l.trash.Discard(draft))
	}
	return err
}

// pruneDrafts removes what processes that were killed have left of snapshots, which
// would keep images for ever. One that a sandbox still has a use for stays.
func (l *Launcher) pruneDrafts() error {
	ids, err := l.directories()
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, id := range ids {
		if r, err := record.Read(l.Dir(id)); err == nil && r.Switch != nil {
			wanted[r.Switch.Draft] = true
		}
	}
	entries, err := os.ReadDir(filepath.Join(l.Data, record.SnapshotsName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		if name, hidden := strings.CutPrefix(e.Name(), "."); hidden && isLeftDraft(name) && !wanted[e.Name()] {
			errs = append(errs, l.trash.Discard(filepath.Join(l.Data, record.SnapshotsName, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// syncLater has a snapshot be there after a crash of the host, a moment later: it
// need not wait for a gigabyte that may be in memory still.
func (l *Launcher) syncLater(r record.Record) {
	f, err := record.OpenStore(r.Init)
	if err != nil {
		return
	}
	l.tending.Go(func() {
		defer f.Close()
		// The kernel does it in half a minute in any case. A failure is recorded, and
		// refuses the snapshot to forks.
		_ = store.Sync(l.ImagePath(r.Image), f)
		_ = integrity.CheckOwn(context.Background(), l.Roots, r)
	})
}

// readSnapshot reads one that a user may have.
func (l *Launcher) readSnapshot(name string, uid uint32) (s snapshot, err error) {
	missing := fmt.Errorf("snapshot %s %w", name, launch.ErrNotFound)
	if !record.IsName(name) {
		return s, missing
	}
	data, err := os.ReadFile(filepath.Join(l.SnapshotDir(name), snapshotFile))
	if errors.Is(err, fs.ErrNotExist) {
		return s, missing
	}
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		return s, fmt.Errorf("snapshot %s: %w", name, err)
	}
	if uid != 0 && s.UID != uid {
		return s, missing
	}
	return s, nil
}

// Snapshots are the names of those that a user may have.
func (l *Launcher) Snapshots(_ context.Context, uid uint32) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(l.Data, record.SnapshotsName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		if name, ours := cutPrefix(e.Name(), l.CgroupPrefix()); ours {
			if _, err := l.readSnapshot(name, uid); err == nil {
				names = append(names, name)
			}
		}
	}
	return names, err
}

func cutPrefix(s, prefix string) (string, bool) {
	if len(s) > len(prefix) && s[:len(prefix)] == prefix {
		return s[len(prefix):], true
	}
	return "", false
}

// RemoveSnapshot removes one. Sandboxes that have begun with it keep its layers.
func (l *Launcher) RemoveSnapshot(_ context.Context, name string, uid uint32) error {
	if _, err := l.readSnapshot(name, uid); err != nil {
		return err
	}
	return l.trash.Discard(l.SnapshotDir(name))
}
