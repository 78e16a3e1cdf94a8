package record

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// A FileHandle finds a directory of the host again, under any name that the directory
// has on its file system: name_to_handle_at(2).
type FileHandle struct {
	Type  int32  `json:"type"`
	Bytes []byte `json:"bytes"`
}

func isDir(fd int, device, inode uint64) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Dev == device && st.Ino == inode && st.Nlink > 0
}

// Lost opens the overlaid directory if the host has moved it away: a read-only detached
// mount of it. Nil: the directory is at its path, or it cannot be found. A client
// without privileges gets only a directory that still belongs to the tree's owner.
func (t Tree) Lost(unprivileged bool) *os.File {
	var now unix.Stat_t
	if t.Handle == nil || unix.Stat(t.Path, &now) == nil && now.Dev == t.Device && now.Ino == t.Inode {
		return nil
	}
	dir := t.byHandle()
	if dir == nil {
		return nil
	}
	var st unix.Stat_t
	if unix.Fstat(int(dir.Fd()), &st) != nil || unprivileged && (t.OnDisk || st.Uid != t.UID) {
		dir.Close()
		return nil
	}
	// In a mount of its own ".." leads nowhere. Of an unbindable mount there is none.
	mount, err := ReadOnly(dir)
	dir.Close()
	if err != nil || mount == dir {
		return nil
	}
	return mount
}

// byHandle opens the directory through the nearest directory above its old place that
// is on the same file system.
func (t Tree) byHandle() *os.File {
	for above := filepath.Dir(t.Path); ; above = filepath.Dir(above) {
		if dir := t.byHandleOn(above); dir != nil || above == "/" {
			return dir
		}
	}
}

func (t Tree) byHandleOn(above string) *os.File {
	mount, err := unix.Open(above, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(mount)
	var st unix.Stat_t
	if unix.Fstat(mount, &st) != nil || st.Dev != t.Device {
		return nil
	}
	h := unix.NewFileHandle(t.Handle.Type, t.Handle.Bytes)
	fd, err := unix.OpenByHandleAt(mount, h, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC)
	if err != nil {
		return nil
	}
	if !isDir(fd, t.Device, t.Inode) { // a tmpfs still finds deleted directories
		unix.Close(fd)
		return nil
	}
	return os.NewFile(uintptr(fd), t.Path)
}
