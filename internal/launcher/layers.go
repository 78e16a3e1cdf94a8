package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/store"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs"
)

// Layers are the trees that the sandbox has overlays of, the caller's to close.
// With unprivileged they are for who has no more than the rights of the trees'
// owner: that owner is shown to have what the sandbox's user wrote, and the
// directories' marks are listed, which the kernel shows only to root.
//
// A stopped sandbox has them if its storage is on disk.
//
// Errors: [launch.ErrNotFound], [launch.ErrNotRunning].
func (s *Sandbox) Layers(ctx context.Context, unprivileged bool) ([]launch.Tree, error) {
	trees, err := s.live.layers(ctx, unprivileged)
	if err != nil {
		return nil, s.live.unlessRemoved(ctx, err)
	}
	return trees, nil
}

func (v *live) layers(ctx context.Context, unprivileged bool) ([]launch.Tree, error) {
	if removalBegun(v.dir()) {
		return nil, fmt.Errorf("sandbox %s %w", v.id, errLeaving)
	}
	r, err := readRecord(v.dir())
	if err != nil {
		return nil, missing(v.id, err)
	}
	held, err := storeOf(r.Init)
	if err != nil {
		return v.stoppedLayers(ctx, unprivileged)
	}
	defer held.Close()
	b := &layerReader{live: v, record: r, store: held, unprivileged: unprivileged}
	if unprivileged && r.Image != "" { // a mount that shows ids that can be mapped to the owner's
		if b.store, err = store.MountImage(v.launcher.imagePath(r.Image)); err != nil {
			return nil, err
		}
		defer b.store.Close()
		b.inside = true
	}
	return b.trees(ctx)
}

// A layerReader opens the layers of one sandbox.
type layerReader struct {
	live   *live
	record record
	store  *os.File
	// inside says that the store shows the ids of the inside.
	inside bool
	// unprivileged layers are for a client with no more than the rights of the trees'
	// owner.
	unprivileged bool
}

// trees opens the layers of all trees.
func (b *layerReader) trees(ctx context.Context) (trees []launch.Tree, err error) {
	trees = []launch.Tree{}
	defer func() {
		if err != nil {
			for _, t := range trees {
				_ = t.Close() // the error is what counts
			}
			trees = nil
		}
	}()
	for i, t := range b.record.Trees {
		trees = append(trees, b.record.tree(t, b.inside))
		if trees[i].Stamps, err = readStamps(b.live.stamps(i, t)); err != nil {
			return nil, err
		}
		if err := b.tree(ctx, t, &trees[i]); err != nil {
			return nil, err
		}
		trees[i].Host = t.lost(b.unprivileged)
	}
	return trees, nil
}

// tree opens the layers of one tree, the uppermost first.
func (b *layerReader) tree(ctx context.Context, t tree, out *launch.Tree) error {
	for _, number := range t.Layers {
		name := path.Join("layer", strconv.Itoa(number), "data")
		if err := b.add(ctx, out, b.store, name, b.inside); err != nil {
			return err
		}
	}
	for _, ref := range b.record.Stacks[t.Path].Below {
		inside := b.unprivileged || b.inside
		image, err := b.live.launcher.openBelow(b.record, ref, inside)
		if err != nil {
			return err
		}
		err = b.add(ctx, out, image, ref.Dir, inside)
		image.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// add opens one layer. inside says that it shows the ids of the inside.
func (b *layerReader) add(ctx context.Context, out *launch.Tree, top *os.File, name string, inside bool) error {
	layer, err := openLayer(ctx, top, name, b.unprivileged)
	if err == nil {
		out.Layers = append(out.Layers, layer)
		if b.unprivileged {
			err = b.record.showToOwner(out, &layer, inside)
		}
	}
	if err != nil {
		return fmt.Errorf("%s of %s: %w", name, out.Path, err)
	}
	return nil
}

// showToOwner has the tree's owner have what the sandbox's user wrote, where the
// kernel can: else what that user has closed to others cannot be read.
func (r record) showToOwner(t *launch.Tree, l *launch.TreeLayer, inside bool) error {
	written := r.userAs(inside)
	err := rootfs.ShowAs(l.Dir, rootfs.User{UID: written.UID, GID: written.GID}, rootfs.User{UID: t.Owner.UID, GID: t.Owner.GID})
	switch {
	case err == nil:
		t.User = t.Owner
	case errors.Is(err, errors.ErrUnsupported):
		return nil
	}
	return err
}

// userAs is the sandbox's user as a store shows the user.
func (r record) userAs(inside bool) launch.Owner {
	user := *r.Config.User
	if inside {
		return launch.Owner{UID: user.UID, GID: user.GID}
	}
	return launch.Owner{
		UID: uint32(hostID(r.UIDMappings, user.UID)), GID: uint32(hostID(r.GIDMappings, user.GID)),
	}
}

// tree is what clients are told of one, without its layers. inside says that these
// show the ids of the inside.
func (r record) tree(t tree, inside bool) launch.Tree {
	user := *r.Config.User
	out := launch.Tree{
		Path: t.Path, Device: t.Device, Inode: t.Inode, Since: t.Since, OnDisk: t.OnDisk, Base: int64(r.IDBase),
		Owner: launch.Owner{UID: t.UID, GID: t.GID},
		User:  r.userAs(inside),
	}
	if inside {
		out.Base = 0
	}
	if t.OnDisk {
		out.Owner = launch.Owner{UID: user.UID, GID: user.GID}
	}
	return out
}

// openLayer opens one layer of a store to be read.
func openLayer(ctx context.Context, top *os.File, name string, marks bool) (l launch.TreeLayer, err error) {
	fd, err := unix.Openat2(int(top.Fd()), name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return l, os.NewSyscallError("openat2", err)
	}
	dir := os.NewFile(uintptr(fd), name)
	if marks {
		if l.Marks, err = layer.Marks(ctx, dir); err != nil {
			return l, errors.Join(err, dir.Close())
		}
	}
	l.Dir, err = readOnly(dir)
	if l.Dir != dir {
		err = errors.Join(err, dir.Close())
	}
	return l, err
}

// readOnly is a detached mount of a directory that lies in one, or the directory
// itself where the kernel makes none of that (before Linux 6.15): who gets it is
// the sandbox's owner, and the directories above are closed to all but root.
func readOnly(dir *os.File) (*os.File, error) {
	tree, err := unix.OpenTree(int(dir.Fd()), "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if errors.Is(err, unix.EINVAL) {
		return dir, nil
	}
	if err != nil {
		return nil, os.NewSyscallError("open_tree", err)
	}
	mount := os.NewFile(uintptr(tree), dir.Name())
	err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC,
	})
	if err != nil {
		return nil, errors.Join(os.NewSyscallError("mount_setattr", err), mount.Close())
	}
	return mount, nil
}

// stamps is the file with those of a tree, by its place in the record, and by when
// its layers were made: what was applied of others is none of theirs.
func (v *live) stamps(i int, t tree) string {
	return filepath.Join(v.dir(), "applied", fmt.Sprintf("%d-%d", i, t.Since.UnixNano()))
}

func readStamps(file string) (map[string]layer.Stamp, error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	stamps, err := launch.DecodeStamps(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return stamps, nil
}

// maxStamps bounds what is kept of a sandbox's stamps, in bytes: they lie beside its
// record, in memory mostly, and trees it may have thousands of.
const maxStamps = 32 << 20

// stampsBut is how much is kept of the stamps of the other trees. Those of layers
// that have been discarded it removes.
func (v *live) stampsBut(r record, tree int) (size int64, err error) {
	kept := map[string]bool{}
	for i, t := range r.Trees {
		kept[v.stamps(i, t)] = i != tree
	}
	dir := filepath.Dir(v.stamps(tree, r.Trees[tree]))
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	for _, e := range entries {
		file := filepath.Join(dir, e.Name())
		other, known := kept[file]
		if !known {
			if err := os.Remove(file); err != nil {
				return 0, err
			}
		}
		if !other {
			continue
		}
		info, err := e.Info()
		if err != nil {
			return 0, err
		}
		size += info.Size()
	}
	return size, err
}

// Applied notes how changes of a tree were applied on the host: that is no conflict
// later. A zero stamp is of a path at which there is nothing any more.
//
// A stopped sandbox notes them if its storage is on disk.
//
// Errors: [launch.ErrNotFound], [launch.ErrNotRunning], [launch.ErrBusy],
// *[launch.ConfigError] for a tree that the sandbox has no overlay of.
func (s *Sandbox) Applied(ctx context.Context, path string, stamps map[string]layer.Stamp) error {
	v := s.live
	return v.aloneWithFiles(ctx, func() error {
		r, err := readRecord(v.dir())
		if err != nil {
			return err
		}
		i := slices.IndexFunc(r.Trees, func(t tree) bool { return t.Path == path })
		if i < 0 {
			return configError(fmt.Errorf("the sandbox has no overlay of %q", path))
		}
		file, since := v.stamps(i, r.Trees[i]), r.Trees[i].Since.UnixNano()
		all, err := readStamps(file)
		if err != nil {
			return err
		}
		if all == nil {
			all = map[string]layer.Stamp{}
		}
		for name, stamp := range stamps {
			switch {
			case stamp == layer.Stamp{}:
				delete(all, name)
			case stamp.CTime > since: // else it was applied of what has been discarded meanwhile
				all[name] = stamp
			}
		}
		encoded := launch.EncodeStamps(all)
		others, err := v.stampsBut(r, i)
		if err != nil {
			return err
		}
		if others+int64(len(encoded)) > maxStamps {
			return configError(fmt.Errorf("more than %d bytes of paths were applied to the host, those below %s with them; discard what the sandbox has there", maxStamps, path))
		}
		return writeStamps(file, encoded)
	})
}

func writeStamps(file string, content []byte) error {
	if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return replaceFile(file, content)
}
