package rootfs

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/userns"
	"golang.org/x/sys/unix"
)

// storeRoot is the id that stands for the host's root on an idmapped store. The sandbox does
// not have this id. So it cannot enter the directories that the host's root makes there.
const storeRoot = 1 << 31

// mapStore makes the store an idmapped mount: its files have the ids of the sandbox.
func (r *Root) mapStore(spaces *userns.Namespaces) error {
	space, err := spaces.Descriptor(r.ids.Map().With(storeRoot, 0))
	if err != nil {
		return err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(space)}
	if err := unix.MountSetattr(int(r.store.Fd()), "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("idmap the store: %w", err)
	}
	return nil
}

// placeArea plans a private directory of the sandbox. A bind of the user at the same place
// replaces it, and so does an overlay of the whole root.
func (p *plan) placeArea(a Area) error {
	at, missing, err := p.find(a.Target)
	if err != nil {
		return fmt.Errorf("mount point %w", err)
	}
	n := &node{kind: areaNode, text: a.Name, mode: a.Mode}
	if a.Mode&0o002 == 0 {
		n.uid, n.gid = p.user.UID, p.user.GID
	}
	switch where := path.Join(at.path, path.Join(missing...)); {
	case where != a.Target:
		return fmt.Errorf("mount point %s: a symbolic link in the root leads it to %s", a.Target, where)
	case len(missing) > 0 && at.bind != nil && at.bind.src.overlay != nil:
		at.descend(missing).through(n)
	case len(missing) > 0:
		dir, err := p.directory(at, missing)
		if err != nil {
			return fmt.Errorf("mount point %s: %w", a.Target, err)
		}
		*dir = *n
	case !at.dir:
		return fmt.Errorf("mount point %s: it is not a directory in the root", a.Target)
	case at.node == nil:
		at.through(n)
	case at.node.named || at.node.kind == areaNode: // the present node stays
	default:
		if at.node.kind == dirNode {
			n.children = at.node.children // binds of the user below stay
		}
		*at.node = *n
	}
	return nil
}

// attachStore attaches a mount of the store below the skeleton, at a place that the sandbox
// cannot see: the upper layer of an overlay must be in the mounter's namespace. It returns a
// detached mount of the store.
//
// Since Linux 6.15 the kernel copies detached mounts. Then a copy is attached, and the
// original is returned: other namespaces could not copy a copy
// (fs/namespace.c:check_anonymous_mnt). On older kernels the original is attached, and a copy
// of the attached mount is returned.
func (b *builder) attachStore(store *os.File) (*os.File, error) {
	at, err := b.make("store")
	if err != nil {
		return nil, err
	}
	defer descriptor.CloseFD(at)
	b.store, err = copyMount(int(store.Fd()))
	detached := -1
	switch {
	case err == nil:
		detached, err = unix.FcntlInt(store.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		err = errors.Join(err, move(b.store, at))
	case errors.Is(err, unix.EINVAL): // Linux before 6.15
		if b.store, err = unix.FcntlInt(store.Fd(), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			break
		}
		if err = move(b.store, at); err == nil {
			detached, err = copyMount(b.store)
		}
	}
	if err != nil {
		descriptor.CloseFD(detached)
		return nil, fmt.Errorf("attach the store: %w", err)
	}
	return os.NewFile(uintptr(detached), "store"), nil
}

// copyMount returns a detached copy of one mount.
func copyMount(fd int) (int, error) {
	return unix.OpenTree(fd, "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
}

// make is makeBelow at a place of the skeleton that the sandbox cannot see.
func (b *builder) make(name string) (int, error) { return makeBelow(b.base, name) }

// makeBelow makes a directory and its parents, unless they exist, and opens the directory.
// Only the host's root can enter the new directories.
func makeBelow(parent int, name string) (int, error) {
	fd := parent
	for _, n := range split(name) {
		err := unix.Mkdirat(fd, n, 0o700)
		next := -1
		if err == nil || errors.Is(err, unix.EEXIST) {
			next, err = openBeneath(fd, n)
		}
		if fd != parent {
			descriptor.CloseFD(fd)
		}
		if err != nil {
			return -1, fmt.Errorf("make %s: %w", name, err)
		}
		fd = next
	}
	return fd, nil
}

// area makes the directory of an areaNode in the store, and attaches it at the place.
func (b *builder) area(at int, n *node) error {
	areas, err := makeBelow(b.store, "area")
	if err != nil {
		return err
	}
	defer descriptor.CloseFD(areas)
	own := *n
	own.covered = true // fill adds the children to the attached tree
	if err := b.directory(areas, n.text, &own); err != nil {
		return err
	}
	return withOpen(areas, n.text, func(dir int) error {
		tree, err := clone(dir, 0)
		if err != nil {
			return err
		}
		defer descriptor.CloseFD(tree)
		if err := move(tree, at); err != nil {
			return fmt.Errorf("move_mount: %w", err)
		}
		return b.fill(tree, n)
	})
}

// clone returns a detached, recursive copy of an attached mount. The copy is nosuid and
// nodev, and has the flags.
func clone(fd int, flags uint64) (int, error) {
	tree, err := unix.OpenTree(fd, "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return -1, fmt.Errorf("open_tree: %w", err)
	}
	attr := unix.MountAttr{
		Attr_set:    unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | flags,
		Propagation: unix.MS_PRIVATE,
	}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		descriptor.CloseFD(tree)
		return -1, fmt.Errorf("mount_setattr: %w", err)
	}
	return tree, nil
}

// mask attaches an empty file or directory, which hides a path. A directory has the mount
// points of the user's binds below that path.
func (b *builder) mask(at int, n *node) error {
	masks, err := b.make("masks")
	if err != nil {
		return err
	}
	defer descriptor.CloseFD(masks)
	name := strconv.Itoa(b.masks)
	b.masks++
	n.made = path.Join("masks", name)
	if n.file {
		err = b.file(masks, name, n)
	} else {
		err = b.directory(masks, name, n)
	}
	if err != nil {
		return err
	}
	return withOpen(masks, name, func(made int) error { return attachReadOnly(made, at) })
}

// attachReadOnly attaches a read-only copy of an attached mount over the file at a descriptor.
func attachReadOnly(mount, at int) error {
	tree, err := clone(mount, unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return err
	}
	defer descriptor.CloseFD(tree)
	return move(tree, at)
}

// A repetition is a second place for an overlay that is attached already.
type repetition struct {
	at   int
	tree *source
}

// noteRepetition notes the place of a sameNode. attachRepetitions attaches it at the end.
func (b *builder) noteRepetition(at int, n *node) error {
	fd, err := unix.FcntlInt(uintptr(at), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	b.repetitions = append(b.repetitions, repetition{fd, n.same.src})
	return nil
}

// attachRepetitions attaches the noted places, with all mounts below their overlays. All other
// mounts must be in place.
func (b *builder) attachRepetitions() error {
	for _, r := range b.repetitions {
		tree, err := clone(r.tree.tree, 0)
		if err == nil {
			err = move(tree, r.at)
			descriptor.CloseFD(tree)
		}
		if err != nil {
			return fmt.Errorf("attach %s at a second place: %w", r.tree.path, err)
		}
	}
	return nil
}
