package rootfs

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"syscall"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"golang.org/x/sys/unix"
)

// storeRoot is the id of the host's root on a mapped store. The host's root makes
// directories there that no id of the inside may enter. The inside does not have this id.
const storeRoot = 1 << 31

// mapStore has the ids of the store be those of the inside.
func (r *Root) mapStore(spaces *namespaces) error {
	host := syscall.SysProcIDMap{ContainerID: storeRoot, HostID: 0, Size: 1}
	userns, err := spaces.descriptor(idMap{append(r.ids.uids(), host), append(r.ids.gids(), host)})
	if err != nil {
		return err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(userns)}
	if err := unix.MountSetattr(int(r.store.Fd()), "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("idmap the store: %w", err)
	}
	return nil
}

// placeArea plans a directory of the sandbox's own. A bind there, or an overlay above all,
// takes its place.
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
		at.below(missing).through(n)
	case len(missing) > 0:
		dir, err := p.directory(at, missing)
		if err != nil {
			return fmt.Errorf("mount point %s: %w", a.Target, err)
		}
		*dir = *n
	case !at.dir:
		return fmt.Errorf("mount point %s: it is no directory in the root", a.Target)
	case at.node == nil:
		at.through(n)
	case at.node.named || at.node.kind == areaNode:
	default: // a bind of the user below stays
		if at.node.kind == dirNode {
			n.children = at.node.children
		}
		*at.node = *n
	}
	return nil
}

// attachStore attaches a mount of the store below the skeleton, out of the
// sandbox's sight: an overlay's upper layer has to lie in the mounter's namespace.
// It returns one that is detached. Where the kernel copies detached mounts (Linux
// 6.15), that is the store's own: a copy could be copied again from the namespace
// alone that it was made in (fs/namespace.c:check_anonymous_mnt).
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
	case errors.Is(err, unix.EINVAL):
		if b.store, err = unix.FcntlInt(store.Fd(), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			break
		}
		if err = move(b.store, at); err == nil {
			detached, err = copyMount(b.store)
		}
	}
	if err != nil {
		if detached >= 0 {
			descriptor.CloseFD(detached)
		}
		return nil, fmt.Errorf("attach the store: %w", err)
	}
	return os.NewFile(uintptr(detached), "store"), nil
}

// copyMount is a detached copy of one mount.
func copyMount(fd int) (int, error) {
	return unix.OpenTree(fd, "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
}

// make makes a directory of the skeleton, out of the sandbox's sight, and those
// above it, and opens it.
func (b *builder) make(name string) (int, error) { return makeBelow(b.base, name) }

// makeBelow makes a directory, and those above it, which may be there, and opens
// it. They are the host root's alone.
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

// area makes the directory in the store, and attaches it.
func (b *builder) area(at int, n *node) error {
	areas, err := makeBelow(b.store, "area")
	if err != nil {
		return err
	}
	defer descriptor.CloseFD(areas)
	own := *n
	own.covered = true // its children belong in the attached one
	if err := b.directory(areas, n.text, &own); err != nil {
		return err
	}
	dir, err := openBeneath(areas, n.text)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer descriptor.CloseFD(dir)
	tree, err := clone(dir, 0)
	if err != nil {
		return err
	}
	defer descriptor.CloseFD(tree)
	if err := move(tree, at); err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	return b.fill(tree, n)
}

// clone is a detached mount, nosuid and nodev, of an attached one that a descriptor shows.
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

// mask attaches an empty file or directory of the skeleton, with the user's binds in it.
func (b *builder) mask(at int, n *node) error {
	masks, err := b.make("masks")
	if err != nil {
		return err
	}
	defer descriptor.CloseFD(masks)
	name := strconv.Itoa(b.masks)
	b.masks++
	if n.file {
		err = b.file(masks, name, n)
	} else {
		err = b.directory(masks, name, n)
	}
	if err != nil {
		return err
	}
	made, err := openBeneath(masks, name)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer descriptor.CloseFD(made)
	tree, err := clone(made, unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return err
	}
	defer descriptor.CloseFD(tree)
	return move(tree, at)
}

// A repetition is an overlay that is attached once more, with all below it.
type repetition struct {
	at   int
	tree *source
}

// later notes where an overlay is to be attached once more.
func (b *builder) later(at int, n *node) error {
	fd, err := unix.FcntlInt(uintptr(at), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	b.again = append(b.again, repetition{fd, n.same.src})
	return nil
}

// repeat attaches the mounts that later has noted, once all others are in place.
func (b *builder) repeat() error {
	for _, r := range b.again {
		tree, err := clone(r.tree.tree, 0)
		if err == nil {
			err = move(tree, r.at)
			descriptor.CloseFD(tree)
		}
		if err != nil {
			return fmt.Errorf("attach %s once more: %w", r.tree.path, err)
		}
	}
	return nil
}
