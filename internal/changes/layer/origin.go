package layer

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Origin tells whether the base's directory is the one that a directory of the
// layers was written over.
type Origin int

const (
	// OriginMade says that the layers' directory was made in the overlay. The
	// sandbox has never seen the base's directory.
	OriginMade Origin = iota
	// OriginSame says that it is the same directory, by its file handle.
	OriginSame
	// OriginOther says that it is another directory: the host has renamed, replaced or
	// removed the first one.
	OriginOther
	// OriginDoubtful says that the file handles differ, and that it is not known if they
	// are of one file system (before Linux 6.9).
	OriginDoubtful
	// OriginUnknown says that there is no file handle to compare.
	OriginUnknown
)

// origin compares the base's directory with the one that the layers' directory was
// copied from. The lowest layer that shows has the copy of the base's directory. Upper
// layers have copies of that copy.
func (w *walker) origin(child *directory) Origin {
	lowest := &child.levels[len(child.levels)-1]
	if !lowest.Copied || lowest.Opaque { // an opaque one is the copy of a directory of another path
		return OriginMade
	}
	h, ok := parseHandle(lowest.Origin)
	if !ok {
		return OriginUnknown
	}
	now, _, err := unix.NameToHandleAt(child.base, "", unix.AT_EMPTY_PATH)
	if err != nil {
		return OriginUnknown
	}
	if now.Type() == h.kind && string(now.Bytes()) == h.bytes {
		return OriginSame
	}
	// A directory between the layers and the base, which holds mount points, is
	// on another file system.
	id, ok := w.baseUUID()
	switch {
	case !ok:
		return OriginDoubtful
	case id != h.uuid:
		return OriginUnknown
	}
	return OriginOther
}

// fsUUID is struct fsuuid2, include/uapi/linux/fs.h.
type fsUUID struct {
	length uint8
	uuid   [16]byte
}

// baseUUID is the UUID of the base's file system: FS_IOC_GETFSUUID, Linux 6.9.
func (w *walker) baseUUID() (id [16]byte, ok bool) {
	const getUUID = 0x80111500
	var answer fsUUID
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, w.Base.Fd(), getUUID, uintptr(unsafe.Pointer(&answer)))
	return answer.uuid, errno == 0 && int(answer.length) == len(answer.uuid)
}

// A handle is a file handle as overlayfs stores it: struct ovl_fb,
// fs/overlayfs/overlayfs.h.
type handle struct {
	kind  int32
	uuid  [16]byte // of the file system
	bytes string   // as name_to_handle_at(2) has them
}

func parseHandle(raw string) (handle, bool) {
	const version, magic, length, kind, id, bytes = 0, 1, 2, 4, 5, 21
	if len(raw) <= bytes || raw[version] != 0 || raw[magic] != 0xfb || int(raw[length]) != len(raw) {
		return handle{}, false
	}
	h := handle{kind: int32(raw[kind]), bytes: raw[bytes:]}
	copy(h.uuid[:], raw[id:bytes])
	return h, true
}
