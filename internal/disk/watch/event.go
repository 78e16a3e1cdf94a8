package watch

import (
	"bytes"
	"encoding/binary"
	"iter"

	"golang.org/x/sys/unix"
)

// An event is the kernel's news about one name, or about a file without one. Its slices
// are parts of the buffer that it was read into.
type event struct {
	mask   uint64
	thread int32
	fsid   [8]byte
	// at is where it happened, to that of a rename the new place. A place
	// without a directory is none.
	at, to place
	// file is the handle of the file that the name stands for, or stood for.
	file []byte
}

// A place is a name in a directory. The file handle of the directory is four bytes of type
// and the bytes of that type. For events of a directory itself the name is ".".
type place struct {
	dir, name []byte
}

func (p place) known() bool { return len(p.dir) > 0 }

// events takes the read bytes apart (linux/fanotify.h, fanotify_event_metadata and
// fanotify_event_info_fid).
func events(b []byte) iter.Seq[event] {
	return func(yield func(event) bool) {
		for len(b) >= unix.FAN_EVENT_METADATA_LEN {
			length := int(binary.NativeEndian.Uint32(b))
			if length < unix.FAN_EVENT_METADATA_LEN || length > len(b) {
				return // no kernel writes that
			}
			e := event{
				mask:   binary.NativeEndian.Uint64(b[8:]),
				thread: int32(binary.NativeEndian.Uint32(b[20:])),
			}
			e.readInfo(b[binary.NativeEndian.Uint16(b[6:]):length])
			if !yield(e) {
				return
			}
			b = b[length:]
		}
	}
}

const (
	infoHeader   = 4 // type, padding, length
	infoFSID     = 8 // after it
	handleHeader = 8 // length and type, before the handle
	handleStart  = infoHeader + infoFSID + handleHeader
)

func (e *event) readInfo(b []byte) {
	for len(b) >= handleStart {
		kind, length := b[0], int(binary.NativeEndian.Uint16(b[2:]))
		if length < handleStart || length > len(b) {
			return
		}
		copy(e.fsid[:], b[infoHeader:])
		size := int(binary.NativeEndian.Uint32(b[infoHeader+infoFSID:]))
		if size > length-handleStart {
			return
		}
		// With its type before it, a handle has the form of OpenByHandleAt.
		handle := b[handleStart-4 : handleStart+size]
		name, _, _ := bytes.Cut(b[handleStart+size:length], []byte{0})
		switch kind {
		case unix.FAN_EVENT_INFO_TYPE_FID:
			e.file = handle
		case unix.FAN_EVENT_INFO_TYPE_DFID_NAME, unix.FAN_EVENT_INFO_TYPE_OLD_DFID_NAME:
			e.at = place{handle, name}
		case unix.FAN_EVENT_INFO_TYPE_NEW_DFID_NAME:
			e.to = place{handle, name}
		}
		b = b[length:]
	}
}
