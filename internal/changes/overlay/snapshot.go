package overlay

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/draft"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/store"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/images"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/integrity"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

const snapshotFile = "snapshot.json"

// snapshotVersion changes when an older launcher could misunderstand snapshot.json.
const snapshotVersion = 1

// A Snapshot describes the layers of a snapshot.
type Snapshot struct {
	Version int         `json:"version"`
	UID     uint32      `json:"uid"`
	Created time.Time   `json:"created"`
	Config  spec.Config `json:"config"`
	// Places have the layers of each place, the uppermost first. The images lie in the
	// directory of the snapshot.
	Places map[string][]record.LayerRef `json:"places"`
	// Trees are the directories of the host that were below.
	Trees []record.Tree `json:"trees,omitempty"`
	// Use is the name of the snapshot's use of the image that is below a layer. Empty: no image is.
	Use string `json:"use,omitempty"`
	// Renamed says that the sandbox has stopped with renamed directories in its layers, which are not opaque.
	Renamed bool `json:"renamed,omitempty"`
}

// ImageTree is the tree that is the root of an image, nil if there is none.
func (s *Snapshot) ImageTree() *record.Tree { return record.ImageTree(s.Trees) }

// newUpper puts a new layer on those that a place has.
func newUpper(r *record.Record, p record.Place, n int) {
	r.ChangeLayers(p.Path, func(own []int) []int { return append([]int{n}, own...) })
}

// DraftSnapshot makes the directory of the snapshot that a switch of layers is for,
// under another name.
func (l *Keeper) DraftSnapshot(r record.Record) (err error) {
	all, err := statedir.OpenData(l.Data, record.SnapshotsName)
	if err != nil {
		return err
	}
	defer all.Close()
	s := Snapshot{Version: snapshotVersion, UID: r.UID, Created: time.Now().UTC(), Config: r.Config, Places: map[string][]record.LayerRef{}, Trees: r.Trees, Renamed: r.Switch.Renamed}
	draft := l.DraftOf(r)
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
	image := s.ImageTree()
	if image != nil {
		// No other snapshot of the name has this name for its use of the image.
		s.Use = images.SnapshotUse(r.Switch.Snapshot, l.CgroupPrefix()+rand.Text()[:8])
	}
	if err := s.write(draft); err != nil || image == nil {
		return err
	}
	return l.images.Use(r.UID, image.Image, s.Use)
}

// write writes the description to the directory of a draft.
func (s *Snapshot) write(dir string) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, snapshotFile), data, 0o600)
}

// discardSnapshot removes the directory of a snapshot, or its draft, and the use of its image. First the use: nothing
// would find the use of a snapshot that has gone.
func (l *Keeper) discardSnapshot(dir string) error {
	var s Snapshot
	if data, err := os.ReadFile(filepath.Join(dir, snapshotFile)); err == nil && json.Unmarshal(data, &s) == nil && s.Use != "" {
		if err := l.images.Release(s.Use); err != nil {
			return err
		}
	}
	return l.trash.Discard(dir)
}

// DraftOf is the directory of the snapshot that a switch of layers makes, until it has its
// name.
func (l *Keeper) DraftOf(r record.Record) string {
	return filepath.Join(l.Data, record.SnapshotsName, r.Switch.Draft)
}

// EndDraft gives a snapshot its name once nobody writes to its layers any more, and
// removes it where that has not come to be.
func (l *Keeper) EndDraft(r record.Record) error {
	draft, name := l.DraftOf(r), r.Switch.Snapshot
	if !r.Switch.Done {
		return l.discardSnapshot(draft)
	}
	err := os.Rename(draft, l.SnapshotDir(name))
	switch {
	case err == nil:
		l.syncLater(r)
	case errors.Is(err, fs.ErrNotExist): // it was given its name before
		return nil
	case errors.Is(err, fs.ErrExist):
		err = fmt.Errorf("snapshot %s %w; choose another name, or remove it first", name, fault.ErrExists)
		fallthrough
	default:
		err = errors.Join(err, l.discardSnapshot(draft))
	}
	return err
}

// syncLater has a snapshot be there after a crash of the host, a moment later: it
// need not wait for a gigabyte that may be in memory still.
func (l *Keeper) syncLater(r record.Record) {
	f, err := record.OpenStore(r.Init)
	if err != nil {
		return
	}
	l.tending.Go(func() {
		defer f.Close()
		// The kernel does it in half a minute in any case. A failure is recorded, and
		// refuses the snapshot to forks.
		_ = store.Sync(l.ImagePath(r.Image), f)
		// A missing file belongs to a snapshot that was removed.
		dir := l.SnapshotDir(r.Switch.Snapshot)
		_ = draft.Sync(filepath.Join(dir, snapshotFile), dir, filepath.Dir(dir))
		_ = integrity.CheckOwn(context.Background(), l.Roots, r)
	})
}

// ReadSnapshot reads one that a user may have.
func (l *Keeper) ReadSnapshot(name string, uid uint32) (s Snapshot, err error) {
	missing := fmt.Errorf("snapshot %s %w", name, fault.ErrNotFound)
	if !record.IsName(name) {
		return s, missing
	}
	data, err := os.ReadFile(filepath.Join(l.SnapshotDir(name), snapshotFile))
	if errors.Is(err, fs.ErrNotExist) {
		return s, missing
	}
	if err == nil {
		err = statedir.Decode(data, snapshotVersion, &s)
	}
	if errors.Is(err, statedir.ErrRelease) {
		return Snapshot{}, fmt.Errorf("snapshot %s: %w, which has to use or remove the snapshot", name, err)
	}
	if err != nil {
		return s, fmt.Errorf("snapshot %s: its description is damaged: %w; as root, remove it with snapshot --remove %[1]s", name, err)
	}
	if uid != 0 && s.UID != uid {
		return s, missing
	}
	return s, nil
}

// Snapshot gives the sandbox's own places new upper layers, and the layers until now the
// name of a snapshot. The caller holds the sandbox.
func (v *Files) Snapshot(ctx context.Context, name string) error {
	mine := func(p record.Place) bool { return p.Host == "" }
	return v.switchLayers(ctx, false, name, mine, newUpper)
}

// Snapshots are the names of the snapshots that a user may have. For root these are all, also
// damaged ones.
func (l *Keeper) Snapshots(uid uint32) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(l.Data, record.SnapshotsName))
	var names []string
	for _, e := range entries {
		if name, ours := strings.CutPrefix(e.Name(), l.CgroupPrefix()); ours && name != "" {
			if _, err := l.ReadSnapshot(name, uid); err == nil || uid == 0 {
				names = append(names, name)
			}
		}
	}
	return names, erase.IgnoreMissing(err)
}

// RemoveSnapshot removes a snapshot that a user may have. Root can also remove a snapshot
// whose description is missing or damaged.
func (l *Keeper) RemoveSnapshot(ctx context.Context, name string, uid uint32) error {
	// Removals take turns. Otherwise, between the check and the removal, another removal could remove this
	// snapshot, and another user could make a new one with the same name.
	all, err := descriptor.OpenLocked(ctx, filepath.Join(l.Data, record.SnapshotsName), unix.O_RDONLY, descriptor.Exclusive)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	defer descriptor.Close(all)
	_, err = l.ReadSnapshot(name, uid)
	if damaged := uid == 0 && record.IsName(name) && statedir.Exists(l.SnapshotDir(name)); err != nil && !damaged {
		return err
	}
	return l.discardSnapshot(l.SnapshotDir(name))
}

// PruneDrafts removes the drafts of snapshots that killed processes have left, which
// would keep images for ever. A wanted draft stays.
func (l *Keeper) PruneDrafts(wanted map[string]bool) error {
	entries, err := os.ReadDir(filepath.Join(l.Data, record.SnapshotsName))
	errs := []error{erase.IgnoreMissing(err)}
	for _, e := range entries {
		if name, hidden := strings.CutPrefix(e.Name(), "."); hidden && isLeftDraft(name) && !wanted[e.Name()] {
			errs = append(errs, l.discardSnapshot(filepath.Join(l.Data, record.SnapshotsName, e.Name())))
		}
	}
	return errors.Join(errs...)
}
