package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/overlays"
)

// overlay makes the mount of an overlay, in place of that of its source, which
// becomes its lower layer. The upper one is layer/N in the store.
func (b *builder) overlay(n *node) error {
	number := strconv.Itoa(n.src.overlay.layer)
	lower, err := b.make("lower/" + number)
	if err != nil {
		return err
	}
	defer descriptor.CloseFD(lower)
	if err := move(n.src.tree, lower); err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	lowers := path.Join(b.dir, "lower", number)
	points, err := b.points(n)
	if err != nil {
		return err
	}
	if points != "" {
		lowers = path.Join(b.dir, points) + ":" + lowers
	}
	if err := b.upper(n.src, number); err != nil {
		return err
	}
	layer := path.Join(b.dir, "store/layer", number)
	overlay, err := overlays.Open(n.renames(), [2]string{"lowerdir", lowers},
		[2]string{"upperdir", path.Join(layer, "data")}, [2]string{"workdir", path.Join(layer, "work")})
	if err != nil {
		return err
	}
	defer overlay.Close()
	mnt, err := overlay.Mount()
	if err != nil {
		return err
	}
	descriptor.CloseFD(n.src.tree)
	n.src.tree = mnt
	return nil
}

// upper makes an overlay's upper layer, whose top has the lower one's owner and
// mode. The top of an image is open to all users, as it is without an overlay.
func (b *builder) upper(lower *source, number string) error {
	dir, err := makeBelow(b.store, "layer/"+number)
	if err != nil {
		return err
	}
	defer descriptor.CloseFD(dir)
	if err := overlays.MakeLayer(dir, lower.tree); err != nil || !lower.image {
		return err
	}
	if err := b.chown(dir, "data", newDir(), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	return unix.Fchmodat(dir, "data", 0o755, 0)
}

// renames says whether directories below an overlay may be renamed. A mount, above all one that hides a secret,
// must keep its path. The kernel refuses to rename a mount point, but renames the directories above the mount
// point. So all mounts must lie in the overlay's top directory.
func (n *node) renames() bool {
	for _, c := range n.children {
		if c.kind == passNode && !c.covered && len(c.children) > 0 {
			return false
		}
	}
	return true
}

// points makes the mount points that an overlay's source does not have, in a layer
// between it and the upper one: they are no change of the sandbox's. The layer is in the
// store, for the overlays that follow this one. points returns its place in the skeleton, empty if there are none.
func (b *builder) points(n *node) (string, error) {
	var missing []point
	if err := n.missing(n.src.tree, ".", false, &missing); err != nil || len(missing) == 0 {
		return "", err
	}
	place := path.Join("store", pointsOf(n.src.overlay.layer, n.src.image))
	all, err := b.make(path.Dir(place))
	if err != nil {
		return "", err
	}
	defer descriptor.CloseFD(all)
	if err := overlays.CopyDir(n.src.tree, ".", all, path.Base(place)); err != nil {
		return "", err
	}
	top, err := openBeneath(all, path.Base(place))
	if err != nil {
		return "", err
	}
	defer descriptor.CloseFD(top)
	for _, p := range missing {
		if err := b.point(n.src.tree, top, p); err != nil {
			return "", fmt.Errorf("make mount point %s: %w", p.rel, err)
		}
	}
	return place, nil
}

// pointsOf is the place in a store of the mount points that the source of an overlay lacks.
func pointsOf(number int, image bool) string {
	if image {
		return "points/image"
	}
	return "points/" + strconv.Itoa(number)
}

// A point is a place that an overlay's source does not have.
type point struct {
	rel string
	dir bool
}

// missing finds the nodes below an overlay that its lower layer does not have, parents
// before children.
func (n *node) missing(lower int, rel string, below bool, all *[]point) error {
	for _, name := range slices.Sorted(maps.Keys(n.children)) {
		c, at := n.children[name], path.Join(rel, name)
		gone := below
		if !below {
			var err error
			if gone, err = c.isGone(lower, at); err != nil {
				return fmt.Errorf("open %s: %w", at, err)
			}
		}
		if gone {
			*all = append(*all, point{at, c.isDir()})
		}
		if c.kind == passNode {
			if err := c.missing(lower, at, gone, all); err != nil {
				return err
			}
		}
	}
	return nil
}

// isGone says whether a lower layer lacks a node, or has a file or a link where the node is a directory.
func (n *node) isGone(lower int, at string) (bool, error) {
	fd, err := openBeneath(lower, at)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer descriptor.CloseFD(fd)
	there, err := examine(fd)
	return n.isDir() && there.mode&unix.S_IFMT != unix.S_IFDIR, err
}

// point makes one, and the directories above it as they are in the lower layer.
func (b *builder) point(lower, top int, p point) error {
	made := ""
	for _, name := range split(path.Dir(p.rel)) {
		if made = path.Join(made, name); made == "." {
			continue
		}
		fd, err := openBeneath(top, made)
		if err == nil {
			descriptor.CloseFD(fd)
			continue
		}
		if err := overlays.CopyDir(lower, made, top, made); err != nil {
			return err
		}
	}
	if !p.dir {
		return unix.Mknodat(top, p.rel, unix.S_IFREG|0o644, 0)
	}
	if err := unix.Mkdirat(top, p.rel, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return b.chown(top, p.rel, newDir(), unix.AT_SYMLINK_NOFOLLOW)
}
