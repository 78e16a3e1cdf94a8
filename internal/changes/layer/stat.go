package layer

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// unknownID stands for an id that has no number inside, as in the kernel:
// /proc/sys/kernel/overflowuid.
const unknownID = 65534

func translate(ids func(uid, gid uint32) (uint32, uint32, bool), uid, gid uint32) (uint32, uint32) {
	if ids == nil {
		return uid, gid
	}
	uid, gid, ok := ids(uid, gid)
	if !ok {
		return unknownID, unknownID
	}
	return uid, gid
}

// statAt looks a name up in a directory, following nothing and mounting nothing.
func statAt(dir int, name string, mask int, st *unix.Statx_t) error {
	return unix.Statx(dir, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, mask, st)
}

const wholeStat = unix.STATX_BASIC_STATS

// direntType is the DT_* of a mode: include/linux/fs_types.h, S_DT.
func direntTypeOf(mode uint16) uint8 { return uint8(mode & unix.S_IFMT >> 12) }

// FileTypeOf is the type of a file of this mode.
func FileTypeOf(mode uint32) spec.FileType {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return spec.TypeFile
	case unix.S_IFDIR:
		return spec.TypeDirectory
	case unix.S_IFLNK:
		return spec.TypeSymlink
	case unix.S_IFIFO:
		return spec.TypeFIFO
	case unix.S_IFSOCK:
		return spec.TypeSocket
	}
	return spec.TypeDevice
}

func fileType(dt uint8) spec.FileType { return FileTypeOf(uint32(dt) << 12) }

func isWhiteout(st *unix.Statx_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev_major == 0 && st.Rdev_minor == 0
}

// fill writes the facts of a stat into a change.
func fill(c *spec.Change, st *unix.Statx_t, ids func(uid, gid uint32) (uint32, uint32, bool)) {
	c.Mode = uint32(st.Mode &^ unix.S_IFMT)
	c.UID, c.GID = translate(ids, st.Uid, st.Gid)
	c.ModTime = time.Unix(st.Mtime.Sec, int64(st.Mtime.Nsec))
	switch c.Type {
	case spec.TypeFile:
		c.Size = int64(st.Size)
	case spec.TypeDevice:
		c.Block = st.Mode&unix.S_IFMT == unix.S_IFBLK
		c.Major, c.Minor = st.Rdev_major, st.Rdev_minor
	}
}

// readLink is a symbolic link's target.
func readLink(dir int, name string) (string, error) {
	target, err := descriptor.ReadLink(dir, name)
	if err == unix.EINVAL {
		err = unix.ENOENT // it is no link any more
	}
	return target, err
}

// sameFile tells of two files, not directories, of the same type whether the one
// in a layer can be one that was only copied from the base.
func sameFile(now, base *unix.Statx_t) bool {
	return now.Mode == base.Mode && now.Size == base.Size &&
		now.Mtime.Sec == base.Mtime.Sec && now.Mtime.Nsec == base.Mtime.Nsec &&
		now.Rdev_major == base.Rdev_major && now.Rdev_minor == base.Rdev_minor
}

// sameOwner compares ids of a layer with ids of the base.
func (s *Stack) sameOwner(now, base *unix.Statx_t) bool {
	uid, gid := translate(s.IDs, now.Uid, now.Gid)
	baseUID, baseGID := translate(s.BaseIDs, base.Uid, base.Gid)
	return uid == baseUID && gid == baseGID
}
