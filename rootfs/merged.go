package rootfs

import (
	"fmt"
	"io"
	"maps"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/overlays"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/userns"
)

// Places in the skeleton of the layers of /etc: the sandbox's own files, and the copies of the host's.
const (
	mergedOwn   = "etc-own"
	mergedUnder = "etc-under"
)

// takeAlone takes the mount of a source, without the mounts below. Where the kernel cannot map the ids of the
// file system, the files belong to nobody.
func (r *Root) takeAlone(s *source, spaces *userns.Namespaces) error {
	space, err := spaces.Descriptor(mapFor(r.ids, s))
	if err != nil {
		return err
	}
	err = s.clone(space, false)
	if unsupported(err) {
		err = s.clone(-1, false)
	}
	return err
}

// merged fills a directory with an overlay of the sandbox's own files and the copies. Where the kernel
// makes no such overlay, the sandbox has copies of its own.
func (b *builder) merged(at int, n *node) error {
	if err := unix.Mkdirat(b.base, mergedUnder, 0o700); err != nil {
		return fmt.Errorf("mkdir %s: %w", mergedUnder, err)
	}
	if err := unix.MoveMount(n.under.tree, "", b.base, mergedUnder, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("move_mount %s: %w", n.under.path, err)
	}
	own := *n
	own.under = nil
	b.pointsOnly = true
	err := b.directory(b.base, mergedOwn, &own)
	b.pointsOnly = false
	if err != nil {
		return err
	}
	mnt, err := b.mountLower(mergedOwn, mergedUnder)
	if cannotOverlay(err) {
		if err := n.readCopies(n.under.tree, "."); err != nil {
			return err
		}
		return b.fill(at, n)
	}
	if err != nil {
		return err
	}
	defer descriptor.CloseFD(mnt)
	if err := move(mnt, at); err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	b.etc = mergedOwn
	return b.attachBelow(mnt, n)
}

// mountLower returns a read-only overlay of two directories of the skeleton.
func (b *builder) mountLower(above, below string) (int, error) {
	overlay, err := overlays.Open(false, [2]string{"lowerdir", path.Join(b.dir, above) + ":" + path.Join(b.dir, below)})
	if err != nil {
		return -1, err
	}
	defer overlay.Close()
	return overlay.MountWith(unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV)
}

// attachBelow attaches the mounts of a plan below a directory that has their mount points.
func (b *builder) attachBelow(at int, n *node) error {
	for _, name := range slices.Sorted(maps.Keys(n.children)) {
		c := n.children[name]
		if c.covered || c.shared() || c.kind == linkNode || c.kind == fileNode {
			continue
		}
		fd, err := openBeneath(at, name)
		if err == nil {
			if c.kind == dirNode {
				err = b.attachBelow(fd, c)
			} else {
				err = b.attach(fd, c)
			}
			descriptor.CloseFD(fd)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// shared says that a node is a copy that the layer below has, or a directory of such copies alone.
func (n *node) shared() bool {
	if n.kind != dirNode {
		return n.copy
	}
	for _, c := range n.children {
		if !c.shared() {
			return false
		}
	}
	return len(n.children) > 0 && !n.covered
}

// readCopies reads the texts of the copies below a directory.
func (n *node) readCopies(dir int, at string) error {
	for name, c := range n.children {
		place := path.Join(at, name)
		if c.kind == dirNode {
			if err := c.readCopies(dir, place); err != nil {
				return err
			}
		}
		if !c.copy {
			continue
		}
		f, err := descriptor.OpenFile(dir, place, descriptor.Beneath, unix.O_RDONLY|unix.O_NOFOLLOW)
		if err != nil {
			return fmt.Errorf("copy of %s: %w", place, err)
		}
		text, err := io.ReadAll(f)
		f.Close()
		if err != nil {
			return fmt.Errorf("copy of %s: %w", place, err)
		}
		c.text, c.copy = string(text), false
	}
	return nil
}
