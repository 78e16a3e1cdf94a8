package apply

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// attributes are the attributes that can be set on a present entry.
type attributes struct {
	Mode     uint32 // permissions, with the upper bits
	UID, GID uint32
	Sec      int64 // modification time
	Nsec     int64
	Xattrs   map[string][]byte
}

// A node is one entry that is to be made, but for a file's content.
type node struct {
	attributes
	kind  spec.FileType
	link  string
	block bool
	major uint32
	minor uint32
}

// A maker makes entries in a tree that nobody else writes to.
type maker struct {
	tree *tree
	copy copier
	// uid and gid are whose the new entries are.
	uid, gid uint32
}

func newMaker(t *tree) *maker {
	return &maker{tree: t, uid: uint32(os.Geteuid()), gid: uint32(os.Getegid())}
}

// makeEntry makes an entry. Directories are left to finish, once they are full.
// content opens the source of a file's content; the maker closes the descriptor.
func (m *maker) makeEntry(path string, n *node, content func() (int, error)) (entry, error) {
	dir, name, err := m.tree.parent(path)
	if err != nil {
		return entry{}, err
	}
	switch n.kind {
	case spec.TypeFile:
		return m.file(dir, name, n, content)
	case spec.TypeDirectory:
		err = unix.Mkdirat(dir, name, 0o700)
	case spec.TypeSymlink:
		if err = unix.Symlinkat(n.link, dir, name); err == nil {
			err = m.finishNamed(dir, name, n)
		}
	case spec.TypeFIFO, spec.TypeDevice:
		if err = unix.Mknodat(dir, name, n.deviceMode(), int(unix.Mkdev(n.major, n.minor))); err == nil {
			err = m.finishNamed(dir, name, n)
		}
	default:
		err = errors.New("a " + string(n.kind) + " is not made")
	}
	if err != nil {
		return entry{}, err
	}
	return statAt(dir, name)
}

func (n *node) deviceMode() uint32 {
	switch {
	case n.kind == spec.TypeFIFO:
		return unix.S_IFIFO | 0o600
	case n.block:
		return unix.S_IFBLK | 0o600
	}
	return unix.S_IFCHR | 0o600
}

func (m *maker) file(dir int, name string, n *node, content func() (int, error)) (entry, error) {
	from, err := content()
	if err != nil {
		return entry{}, err
	}
	defer unix.Close(from)
	mode := n.Mode & 0o777 // mostly the umask leaves it as it is
	if len(n.Xattrs) > 0 {
		mode = 0o600
	}
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	if err != nil {
		return entry{}, err
	}
	defer unix.Close(fd)
	if err := m.copy.file(fd, from); err != nil {
		return entry{}, err
	}
	if len(n.Xattrs) > 0 {
		return m.finishOpened(fd, dir, name, n)
	}
	return m.finishPlain(fd, dir, name, n)
}

// finishPlain is finishOpened for a new file without extended attributes. It sets the mode only if that is
// another one.
func (m *maker) finishPlain(fd, dir int, name string, n *node) (entry, error) {
	if err := m.chown(fd, n); err != nil {
		return entry{}, err
	}
	if err := unix.UtimesNanoAt(dir, name, n.times(), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return entry{}, err
	}
	e, err := statFD(fd)
	if err != nil || e.Mode&^unix.S_IFMT == n.Mode {
		return e, err
	}
	if err := unix.Fchmod(fd, n.Mode); err != nil {
		return entry{}, err
	}
	return statFD(fd)
}

// chown gives an open file its owner.
func (m *maker) chown(fd int, n *node) error {
	if n.UID == m.uid && n.GID == m.gid {
		return nil
	}
	if err := unix.Fchown(fd, int(n.UID), int(n.GID)); err != nil {
		return ownerError(n, err)
	}
	return nil
}

// finish gives a directory its attributes, once all is in it that belongs there.
func (m *maker) finish(path string, n *node) (entry, error) {
	dir, name, err := m.tree.parent(path)
	if err != nil {
		return entry{}, err
	}
	fd, err := beneath(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return entry{}, err
	}
	defer unix.Close(fd)
	return m.finishOpened(fd, dir, name, n)
}

// finishOpened sets owner, mode, extended attributes and time, in this order: each change
// of the first takes something of the later ones away. But the user's attributes come before the mode: their change needs
// the right to write (fs/xattr.c:xattr_permission), which the mode can take away. It returns the entry as it is then.
func (m *maker) finishOpened(fd, dir int, name string, n *node) (entry, error) {
	if err := m.chown(fd, n); err != nil {
		return entry{}, err
	}
	if err := setXattrs(fd, n.Xattrs, isUsers); err != nil {
		return entry{}, err
	}
	if err := unix.Fchmod(fd, n.Mode); err != nil {
		return entry{}, err
	}
	if err := setXattrs(fd, n.Xattrs, func(name string) bool { return !isUsers(name) }); err != nil {
		return entry{}, err
	}
	if err := unix.UtimesNanoAt(dir, name, n.times(), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return entry{}, err
	}
	return statFD(fd)
}

// finishNamed is finishOpened for entries that are not opened.
func (m *maker) finishNamed(dir int, name string, n *node) error {
	if n.UID != m.uid || n.GID != m.gid {
		if err := unix.Fchownat(dir, name, int(n.UID), int(n.GID), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return ownerError(n, err)
		}
	}
	if n.kind != spec.TypeSymlink {
		fd, err := beneath(dir, name, unix.O_PATH|unix.O_NOFOLLOW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.Chmod(procPath(fd), n.Mode); err != nil {
			return err
		}
	}
	return unix.UtimesNanoAt(dir, name, n.times(), unix.AT_SYMLINK_NOFOLLOW)
}

func (a *attributes) times() []unix.Timespec {
	return []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: a.Sec, Nsec: a.Nsec}}
}

func ownerError(n *node, err error) error {
	if errors.Is(err, unix.EPERM) {
		return errors.New("it would belong to user " + strconv.Itoa(int(n.UID)) + " and group " +
			strconv.Itoa(int(n.GID)) + ", which only root can bring about: choose other paths")
	}
	return err
}

// isUsers reports whether an attribute is the user's. The right to write to the file is enough to set such an attribute.
func isUsers(name string) bool { return strings.HasPrefix(name, "user.") }

// setXattrs sets those extended attributes that are wanted.
func setXattrs(fd int, xattrs map[string][]byte, wanted func(name string) bool) error {
	for name, value := range xattrs {
		if !wanted(name) {
			continue
		}
		if err := unix.Fsetxattr(fd, name, value, 0); err != nil {
			return &pathError{"attribute " + name, err}
		}
	}
	return nil
}

const (
	accessACL  = "system.posix_acl_access"
	defaultACL = "system.posix_acl_default"
	capability = "security.capability"
)

// xattrsOf reads the extended attributes that are an open file's own.
func xattrsOf(fd int) (map[string][]byte, error) {
	list, err := grow(func(b []byte) (int, error) { return unix.Flistxattr(fd, b) })
	if errors.Is(err, unix.EOPNOTSUPP) || err == nil && len(list) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	found := map[string][]byte{}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		if !layer.IsData(name) {
			continue
		}
		value, err := grow(func(b []byte) (int, error) { return unix.Fgetxattr(fd, name, b) })
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err != nil {
			return nil, err
		}
		found[name] = value
	}
	return found, nil
}

// grow calls a function with more room until the room is enough.
func grow(read func([]byte) (int, error)) ([]byte, error) {
	for size := 256; ; size *= 4 {
		b := make([]byte, size)
		n, err := read(b)
		if err == nil {
			return b[:n], nil
		}
		if !errors.Is(err, unix.ERANGE) || size > 1<<20 {
			return nil, err
		}
	}
}
