package rootfs

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
)

// A view shows a directory of the host through a read-only overlay. The inodes are the
// sandbox's own: locks and inotify inside reach no program outside (docs/adr/0016).
type view struct {
	dir   *source
	lower int // the mount of the directory alone; -1 before it is taken
	top   int // the attached overlay; -1 where there is none
	err   error
}

// viewOf plans a view of a directory.
func (p *plan) viewOf(dir *source) *view {
	v := &view{dir: dir, lower: -1, top: -1}
	p.views = append(p.views, v)
	return v
}

// hostView is the view for a part of the host's own root: one overlay serves all parts that
// lie on the mount of "/", as a start pays for each overlay. The paths of these parts are
// looked up once more in the view: only the host's root can swap them meanwhile.
func (p *plan) hostView(part *source) (*view, error) {
	if p.rootView == nil {
		fd, err := descriptor.Open(unix.AT_FDCWD, "/", descriptor.NoLinks, unix.O_PATH)
		if err != nil {
			return nil, err
		}
		root := &source{path: "/", real: "/", fd: fd, tree: -1, dir: true}
		p.sources.add(root)
		p.rootView = p.viewOf(root)
	}
	whole, err := identify(p.rootView.dir.fd)
	if err != nil {
		return nil, err
	}
	of, err := identify(part.fd)
	if err != nil {
		return nil, err
	}
	if whole.mount != of.mount {
		return p.viewOf(part), nil
	}
	return p.rootView, nil
}

// openHost opens a part of the host's own root.
func (p *plan) openHost(name string) (*source, error) {
	s, err := p.sources.open(name)
	if err != nil {
		return nil, err
	}
	v, err := p.hostView(s)
	if err == nil {
		v.show(s)
	}
	return s, err
}

// show has a source be shown through the view, if it lies in the view's directory.
func (v *view) show(s *source) {
	if hostpaths.Within(s.real, v.dir.real) {
		s.view, s.at = v, strings.TrimPrefix(strings.TrimPrefix(s.real, v.dir.real), "/")
	}
}

func (v *view) close() {
	descriptor.CloseFD(v.lower, v.top)
	v.lower, v.top = -1, -1
}

// takeView takes the lower layer of the view of a source. An overlay does not cross
// mounts: a source that has a mount of the host above or below it, within the view, is
// shown itself. A foreign source has no view: its user chose to share it.
func (r *Root) takeView(s *source) error {
	switch {
	case s.foreign:
		return nil
	case s.view == nil:
		r.noteShared(s.path, errors.New("it lies on another mount"))
		return nil
	}
	m, err := r.plan.mounted.mountsOf(s.view.dir)
	if err != nil {
		return err
	}
	for _, i := range m.below {
		if hostpaths.Within(i.Mountpoint, s.real) || hostpaths.Within(s.real, i.Mountpoint) {
			r.noteShared(s.path, errors.New("a file system is mounted on "+i.Mountpoint))
			s.view = nil
			return nil
		}
	}
	if s.view.lower >= 0 {
		return nil
	}
	lower := source{path: s.view.dir.path, fd: s.view.dir.fd, tree: -1}
	err = lower.clone(-1, false)
	s.view.lower = lower.tree
	return err
}

// noteShared notes that a sandbox has the host's own files.
func (r *Root) noteShared(name string, why error) {
	r.addNote("%s is not shown through an overlay: %v. Locks and inotify inside reach programs of the host that use these files", name, why)
}

// view replaces the mount of a source by one of the same place in its view. Where the
// kernel makes no such overlay, the mount stays. The owner of a language prefix can have
// put a symbolic link at the place meanwhile: it is not followed, and nothing outside the
// view is reached.
func (b *builder) view(s *source) error {
	v := s.view
	if v.top < 0 && v.err == nil {
		v.top, v.err = b.overView(v)
	}
	if cannotOverlay(v.err) {
		b.noteShared(v.dir.path, fmt.Errorf("the kernel refuses one over its file system (%w)", v.err))
		return nil
	}
	if v.err != nil {
		return v.err
	}
	place, err := openBeneath(v.top, cmp.Or(s.at, "."))
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer descriptor.CloseFD(place)
	if there, err := examine(place); err != nil {
		return fmt.Errorf("stat: %w", err)
	} else if is := typeName(there.mode); is != typeName(s.mode) {
		return fmt.Errorf("it became a %s meanwhile", is)
	}
	tree, err := unix.OpenTree(place, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("open_tree: %w", err)
	}
	descriptor.CloseFD(s.tree)
	s.tree = tree
	return nil
}

// overView makes the overlay of a view, and attaches it where the sandbox cannot see it: a
// kernel before Linux 6.15 copies no detached mount. An overlay without an upper layer needs
// two lower ones, so there is an empty one.
func (b *builder) overView(v *view) (int, error) {
	b.views++
	number := strconv.Itoa(b.views)
	lower, empty, top := "view-lower-"+number, "view-empty-"+number, "view-"+number
	for _, name := range []string{lower, empty, top} {
		if err := unix.Mkdirat(b.base, name, 0o700); err != nil {
			return -1, fmt.Errorf("mkdir %s: %w", name, err)
		}
	}
	if err := unix.MoveMount(v.lower, "", b.base, lower, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return -1, fmt.Errorf("move_mount %s: %w", v.dir.path, err)
	}
	mnt, err := b.mountLower(lower, empty)
	if err != nil {
		return -1, err
	}
	if err := unix.MoveMount(mnt, "", b.base, top, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		descriptor.CloseFD(mnt)
		return -1, fmt.Errorf("move_mount: %w", err)
	}
	return mnt, nil
}

// cannotOverlay says whether the kernel refused an overlay as such: it has no overlays, the
// file system of the lower layer is not supported, or is itself an overlay over another one.
func cannotOverlay(err error) bool {
	return slices.ContainsFunc([]error{unix.EINVAL, unix.ENODEV, unix.EOPNOTSUPP}, func(e error) bool { return errors.Is(err, e) })
}
