package overlay

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/throttle"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/trash"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
)

// Images are the images whose roots are below layers.
type Images interface {
	// Mount mounts an image that a sandbox uses, by its id. The caller must close the root directory.
	Mount(r record.Record, id string) (*os.File, error)
	// Use notes that something uses an image of a user, under a name, and Release ends the use.
	Use(uid uint32, id, by string) error
	Release(by string) error
}

// OpenImage opens the root directory of an image that a sandbox uses. The caller must close the file.
func (k *Keeper) OpenImage(r record.Record, id string) (*os.File, error) {
	return k.images.Mount(r, id)
}

// A Keeper keeps the layers of all sandboxes of a launcher.
type Keeper struct {
	record.Roots
	// self identifies the launcher's process.
	self    func() (process.ID, error)
	images  Images
	sweeper *trash.Sweeper
	trash   *trash.Can
	// tending waits for the goroutines that sync snapshots.
	tending *sync.WaitGroup
}

// NewKeeper returns the keeper of a launcher, which waits for tending before it ends.
func NewKeeper(in record.Roots, self func() (process.ID, error), images Images, s *trash.Sweeper, can *trash.Can, tending *sync.WaitGroup) *Keeper {
	return &Keeper{Roots: in, self: self, images: images, sweeper: s, trash: can, tending: tending}
}

// Files are the files of a sandbox as layers: transactions, snapshots, discards and
// forks change which layers there are.
type Files struct {
	*record.Sandbox
	keeper *Keeper
	lift   *throttle.Lift
}

// Files returns the files of a sandbox. lift is nil for a sandbox in which nothing runs yet.
func (k *Keeper) Files(box *record.Sandbox, lift *throttle.Lift) *Files {
	return &Files{Sandbox: box, keeper: k, lift: lift}
}

// DraftName is the name of something that does not have its own name yet. It names the
// process that makes it.
func DraftName(owner process.ID) string {
	return fmt.Sprintf("new-%d-%d-%s-%s", owner.Pid, owner.Start, owner.Namespace, rand.Text())
}

// isLeftDraft says that a name is of such a thing, and its maker has ended.
func isLeftDraft(name string) bool {
	parts := strings.Split(name, "-")
	if len(parts) != 5 || parts[0] != "new" {
		return false
	}
	owner, err := process.Parse(strings.Join(parts[1:4], " "))
	return err == nil && !owner.Lives()
}

// eraseIn removes an entry of a store that has no room for a trash. The entry first gets a name that means nothing, in one
// step, and is erased in the background.
func (k *Keeper) eraseIn(store *os.File, name string) error {
	self, err := k.self()
	if err != nil {
		return err
	}
	above, base := path.Split(name)
	parent, err := descriptor.OpenDir(store, path.Clean(above))
	if err != nil {
		return erase.IgnoreMissing(err)
	}
	draft := DraftName(self)
	if err := unix.Renameat2(int(parent.Fd()), base, int(parent.Fd()), draft, unix.RENAME_NOREPLACE); err != nil {
		parent.Close()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("discard %s of the store: %w", name, err)
	}
	k.sweeper.Start(func(ctx context.Context) {
		defer parent.Close()
		_ = erase.Entry(ctx, parent, draft) // it goes with the sandbox at the latest
	})
	return nil
}

// DiscardIn moves an entry of a store into the store's trash, and empties the trash in
// the background. The next call goes on with a trash that a closed launcher has left. In a store that takes no more
// writes the entry stays until the sandbox is removed: commands can still read the sandbox's files.
func (k *Keeper) DiscardIn(store *os.File, name string) error {
	trash, err := makeDir(store, "trash")
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return k.eraseIn(store, name)
	}
	if errors.Is(err, unix.EROFS) {
		return nil
	}
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		err = unix.Renameat2(int(store.Fd()), name, int(trash.Fd()), strconv.Itoa(i), unix.RENAME_NOREPLACE)
		if !errors.Is(err, unix.EEXIST) {
			break
		}
	}
	if err != nil {
		trash.Close()
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EROFS) {
			return nil
		}
		return fmt.Errorf("discard %s of the store: %w", name, err)
	}
	k.sweeper.Start(func(ctx context.Context) {
		defer trash.Close()
		_ = erase.Contents(ctx, trash) // the next call goes on
	})
	return nil
}

// relieve empties the trash of a store that is more than half full, in files or in bytes. Else many
// short-lived launchers could fill the store with their trash.
func relieve(ctx context.Context, store *os.File) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(store.Fd()), &st); err != nil {
		return fmt.Errorf("statfs the store: %w", err)
	}
	if st.Bfree >= st.Blocks/2 && st.Ffree >= st.Files/2 {
		return nil
	}
	trash, err := descriptor.OpenDir(store, "trash")
	if err != nil {
		return erase.IgnoreMissing(err)
	}
	defer trash.Close()
	_ = erase.Contents(ctx, trash) // the next call goes on
	return ctx.Err()
}

// forgetApplied removes the stamps of discarded layers, for trees that keep their age.
func (v *Files) forgetApplied(r record.Record) error {
	for i, t := range r.Trees {
		if !r.BegunWith(t) {
			continue
		}
		if err := os.Remove(v.StampsPath(i, t)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// imageIsKept tells whether the sandbox's image has other names than its own.
func (v *Files) imageIsKept() (bool, error) {
	image := v.Current().Image
	if image == "" {
		return false, nil
	}
	var st unix.Stat_t
	if err := unix.Lstat(v.ImagePath(image), &st); err != nil {
		return false, fmt.Errorf("image of %s: %w", v.ID, err)
	}
	return st.Nlink > 1, nil
}

func (k *Keeper) discardLayers(store *os.File, numbers []int) (err error) {
	for _, n := range numbers {
		err = errors.Join(err, k.DiscardIn(store, "layer/"+strconv.Itoa(n)))
	}
	return err
}

// Discard gives each overlay of the sandbox a new upper layer, and throws away the layers
// above the host's files. The caller holds the sandbox.
//
// Errors: *[fault.ConfigError] if the sandbox has no overlay.
func (v *Files) Discard(ctx context.Context) error {
	r, err := record.Read(v.Path())
	if err != nil {
		return err
	}
	if len(r.Trees) == 0 {
		return &fault.ConfigError{Reason: "the sandbox has no overlay; make it with an overlay, as with --overlay DIR"}
	}
	kept, err := v.imageIsKept() // by snapshots or forks, with the layers that they froze
	if err != nil {
		return err
	}
	since, err := record.Settled(ctx)
	if err != nil {
		return err
	}
	trees := func(p record.Place) bool { return p.Tree != nil || p.Same != "" }
	return v.switchLayers(ctx, true, "", trees, func(r *record.Record, p record.Place, n int) {
		t := r.TreeAt(p.Path)
		old := t.Layers[:1]
		if !kept {
			old = t.Layers
		}
		r.Switch.Old = append(r.Switch.Old, old...)
		t.Layers = []int{n}
		if !r.BegunWith(*t) {
			t.Since = since
		}
	})
}
