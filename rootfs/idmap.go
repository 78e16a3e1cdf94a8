package rootfs

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/userns"
	"golang.org/x/sys/unix"
)

// owner is the owner on disk, or the owner of a peer's source.
func (s *source) owner() userns.Owner { return userns.Owner{UID: s.uid, GID: s.gid} }

// mapFor is the id map of a source's mount.
func mapFor(i userns.IDs, s *source) userns.Map {
	if s.shown == asOnDisk {
		return i.Map()
	}
	return userns.Single(s.owner(), i.Host())
}

// takeTrees makes the detached mounts of a plan. Writable sources come first:
// whether they can be idmapped decides on the maps of all others.
func (r *Root) takeTrees(spaces *userns.Namespaces) error {
	writable, rest := []*source{}, []*source{}
	r.plan.root.eachSource(func(s *source) {
		if s.writable || s.overlay != nil && s.shown == asUser {
			writable = append(writable, s)
		} else {
			rest = append(rest, s)
		}
	})
	if err := r.takeWritable(writable, spaces); err != nil {
		return err
	}
	for _, s := range rest {
		if err := r.takeReadOnly(s, spaces); err != nil {
			return err
		}
	}
	if under := r.plan.under; under != nil { // the copies of the host's files
		if err := r.takeAlone(under, spaces); err != nil {
			return err
		}
	}
	for _, s := range r.plan.sources.all {
		s.closePath()
	}
	return nil
}

// eachSource calls f with the sources at the node and below, by path.
func (n *node) eachSource(f func(*source)) {
	if n.kind == bindNode {
		f(n.src)
	}
	for _, name := range slices.Sorted(maps.Keys(n.children)) {
		n.children[name].eachSource(f)
	}
}

// takeWritable idmaps each source. Where one cannot be, its owner becomes the
// host's user behind the sandbox's, and all are taken again with that.
func (r *Root) takeWritable(sources []*source, spaces *userns.Namespaces) error {
	var plain *source // the one that made its owner direct
	for i := 0; i < len(sources); i++ {
		s := sources[i]
		err := r.idmap(s, spaces)
		switch {
		case err == nil:
			continue
		case !unsupported(err):
			return err
		case r.ids.Direct == nil:
			if err := r.goDirect(s, spaces); err != nil {
				return err
			}
			plain, i = s, -1
		case *r.ids.Direct != s.owner():
			return fmt.Errorf("%s belongs to %d:%d and %s to %d:%d, and neither file system can be idmapped: give them one owner, or bind one read-only",
				plain.path, plain.uid, plain.gid, s.path, s.uid, s.gid)
		default:
			if _, err := r.plan.mounted.checkedMountsOf(s); err != nil {
				return err
			}
			if err := s.clone(-1, true); err != nil {
				return err
			}
		}
	}
	return nil
}

// goDirect makes a source's owner the host's user behind the sandbox's.
func (r *Root) goDirect(s *source, spaces *userns.Namespaces) error {
	m, err := r.plan.mounted.checkedMountsOf(s)
	if err != nil {
		return err
	}
	space, err := spaces.Descriptor(mapFor(r.ids, s))
	if err != nil {
		return err
	}
	if err := s.refuseMixed(m, space); err != nil {
		return err
	}
	if s.uid == 0 || s.gid == 0 {
		return fmt.Errorf("%s belongs to %d:%d and is on %s, which cannot be idmapped, and the host's root is never mapped into a sandbox: chown it to an ordinary user and group, or use a directory on another file system",
			s.path, s.uid, s.gid, m.fsType)
	}
	if in := func(id uint32) bool { return id >= r.ids.Base && id-r.ids.Base < IDCount }; in(s.uid) || in(s.gid) {
		return fmt.Errorf("%s belongs to %d:%d, which lies in the sandbox's own id range: chown it to an ordinary user", s.path, s.uid, s.gid)
	}
	direct := s.owner()
	r.ids.Direct = &direct
	r.addNote("%s is on %s, which cannot be idmapped: user %d:%d of the sandbox is user %d:%d of the host",
		s.path, m.fsType, r.ids.User.UID, r.ids.User.GID, s.uid, s.gid)
	return nil
}

// takeReadOnly idmaps a source where it should be and can be.
func (r *Root) takeReadOnly(s *source, spaces *userns.Namespaces) error {
	if s.socket {
		r.noteSocket(s)
	}
	if s.shown == asNobody {
		if s.foreign {
			r.addNote("%s belongs to user %d, and another user asks for it: its files belong to nobody in the sandbox", s.origin, s.uid)
		}
		if s.dir {
			if _, err := r.plan.mounted.checkedMountsOf(s); err != nil {
				return err
			}
		}
		if err := r.takeView(s); err != nil {
			return err
		}
		return s.clone(-1, true)
	}
	err := r.idmap(s, spaces)
	if err == nil || !unsupported(err) {
		return err
	}
	m, err := r.plan.mounted.checkedMountsOf(s)
	if err != nil {
		return err
	}
	if s.shown == asOnDisk || r.ids.Direct == nil || *r.ids.Direct != s.owner() {
		r.addNote("%s is on %s, or has another file system below it, that cannot be idmapped: its files belong to nobody in the sandbox", s.origin, m.fsType)
	}
	return s.clone(-1, true)
}

// addNote adds a note once.
func (r *Root) addNote(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(r.notes, text) {
		r.notes = append(r.notes, text)
	}
}

// idmap takes the source's tree with its id map.
func (r *Root) idmap(s *source, spaces *userns.Namespaces) error {
	fd, err := spaces.Descriptor(mapFor(r.ids, s))
	if err != nil {
		return err
	}
	return s.clone(fd, true)
}

// unsupportedError is the kernel's refusal to idmap a tree.
type unsupportedError struct{ error }

func (e unsupportedError) Unwrap() error { return e.error }

func unsupported(err error) bool {
	return errors.As(err, new(unsupportedError))
}

// clone takes the source's tree as a detached mount, in place of one taken
// before. open_tree(2), Linux 5.2; mount_setattr(2), Linux 5.12, which says
// EINVAL where a file system cannot be idmapped and EPERM where a mount already
// is.
func (s *source) clone(space int, recursive bool) error {
	descriptor.CloseFD(s.tree)
	s.tree = -1
	flags := uint(unix.AT_EMPTY_PATH)
	if recursive && s.overlay == nil { // an overlay's lower layer crosses no mount
		flags |= unix.AT_RECURSIVE
	}
	tree, err := unix.OpenTree(s.fd, "", flags|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open_tree %s: %w", s.path, err)
	}
	attr := unix.MountAttr{
		Attr_set:    unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV,
		Propagation: unix.MS_PRIVATE,
	}
	if !s.writable {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if space >= 0 {
		attr.Attr_set |= unix.MOUNT_ATTR_IDMAP
		attr.Userns_fd = uint64(space)
	}
	if err := unix.MountSetattr(tree, "", flags, &attr); err != nil {
		descriptor.CloseFD(tree)
		wrapped := fmt.Errorf("mount_setattr %s: %w", s.path, err)
		if space >= 0 && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EOPNOTSUPP)) {
			return unsupportedError{wrapped}
		}
		return wrapped
	}
	s.tree = tree
	return nil
}

// ShowAs has a detached mount, which maps no ids yet, show the files of one user and group
// as another's, and all other files as nobody's. It is errors.ErrUnsupported for a file
// system that the kernel does not idmap, and for a mount that is not detached.
func ShowAs(mount *os.File, has, shown User) error {
	space, err := userns.New(userns.Single(has.owner(), shown.owner()), 0)
	if err != nil {
		return err
	}
	defer descriptor.CloseFD(space)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(space)}
	err = unix.MountSetattr(int(mount.Fd()), "", unix.AT_EMPTY_PATH, &attr)
	if errors.Is(err, unix.EINVAL) {
		err = errors.Join(errors.ErrUnsupported, err)
	}
	if err != nil {
		return fmt.Errorf("idmap %s: %w", mount.Name(), err)
	}
	return nil
}
