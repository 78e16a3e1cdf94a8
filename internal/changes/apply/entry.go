package apply

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// An entry describes a path of a tree.
type entry struct {
	identity
	ctime int64 // nanoseconds
	born  int64 // nanoseconds; 0 where the file system does not know
	mount bool  // something is mounted there
	links uint32
	major uint32
	minor uint32
	// device is the inode's. Files of one overlay can have several devices.
	device uint64
}

// An inode is the same for all names of a file.
type inode struct{ device, number uint64 }

func (e *entry) inode() inode { return inode{e.device, e.Ino} }

// An identity is how an entry is known again after a rename, which changes
// nothing of it but its ctime.
type identity struct {
	Ino   uint64
	Mode  uint32 // with its type
	UID   uint32
	GID   uint32
	Size  int64 // of no directory
	MTime int64 // nanoseconds
}

// unchangedSince tells whether nobody has changed an entry since a moment. The entry
// lies in a moved directory. The move of one name of a file changes the ctime of all its
// names.
func (e *entry) unchangedSince(moment int64) bool {
	if !e.dir() && e.links > 1 {
		return e.MTime <= moment
	}
	return e.ctime <= moment
}

// sameAs tells whether two identities are of one entry. An exchange on XFS changes
// the modification time of a directory (fs/xfs/xfs_inode.c:xfs_cross_rename()).
func (i identity) sameAs(o identity) bool {
	if i.dir() && o.dir() {
		i.MTime, o.MTime = 0, 0
	}
	return i == o
}

func (i identity) dir() bool { return i.Mode&unix.S_IFMT == unix.S_IFDIR }

// fileType is the type of an entry, in the words of a change.
func (i identity) fileType() spec.FileType { return layer.FileTypeOf(i.Mode) }

// stat describes a path. The error is ENOENT for a missing one, also if its parent is not
// a directory.
func (t *tree) stat(path string) (entry, error) {
	dir, name, err := t.parent(path)
	if err != nil {
		return entry{}, err
	}
	e, err := statAt(dir, name)
	if err != nil {
		return entry{}, &pathError{path, err}
	}
	return e, nil
}

func statAt(dir int, name string) (entry, error) {
	return statx(dir, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT)
}

func statFD(fd int) (entry, error) { return statx(fd, "", unix.AT_EMPTY_PATH) }

func statx(dir int, name string, flags int) (entry, error) {
	const wanted = unix.STATX_BASIC_STATS | unix.STATX_BTIME
	var x unix.Statx_t
	if err := unix.Statx(dir, name, flags, wanted, &x); err != nil {
		return entry{}, err
	}
	e := entry{
		identity: identity{Ino: x.Ino, Mode: uint32(x.Mode), UID: x.Uid, GID: x.Gid, Size: int64(x.Size), MTime: nanoseconds(x.Mtime)},
		ctime:    nanoseconds(x.Ctime),
		links:    x.Nlink,
		mount:    x.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0,
		major:    x.Rdev_major, minor: x.Rdev_minor,
		device: unix.Mkdev(x.Dev_major, x.Dev_minor),
	}
	if e.dir() {
		e.Size = 0
	}
	if x.Mask&unix.STATX_BTIME != 0 {
		e.born = nanoseconds(x.Btime)
	}
	return e, nil
}

func nanoseconds(t unix.StatxTimestamp) int64 { return t.Sec*1e9 + int64(t.Nsec) }

// missing tells whether there is nothing at a path, as far as the tree goes.
func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// noDirectory tells whether a parent of a path is not one, or not any more.
func noDirectory(err error) bool {
	return errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, errAnother)
}
