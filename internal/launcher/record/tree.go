package record

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/rootfs"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A Tree is a directory of the host, or the root of an image, that a sandbox has an overlay of.
type Tree struct {
	// Path is its place on the host and in the sandbox.
	Path string `json:"path"`
	// Alias is a second place in the sandbox, the path without symbolic links. Empty: there is none.
	Alias string `json:"alias,omitempty"`
	// Layers are the numbers of its layers in the store, the upper one first.
	Layers []int `json:"layers"`
	// Since is the time of the overlay: the sandbox may not have seen later changes of the
	// host.
	Since time.Time `json:"since"`
	// UID and GID are the owner on the host whose files the sandbox's user has,
	// unless all ids are as on disk.
	UID    uint32 `json:"uid"`
	GID    uint32 `json:"gid"`
	OnDisk bool   `json:"on_disk,omitempty"`
	// Image is the id of the image whose root it is. Empty: it is a directory of the host.
	Image string `json:"image,omitempty"`
	// Device and Inode tell the directory from another that takes its name.
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
	// Handle finds the directory where the host has moved it. Nil: nothing does.
	Handle *FileHandle `json:"handle,omitempty"`
}

// NewTrees are the trees of a new sandbox. image is the id of the image that the sandbox's root can be.
func NewTrees(from []rootfs.Tree, image string, since time.Time) []Tree {
	var all []Tree
	for _, t := range from {
		tree := Tree{
			Path: t.Path, Alias: t.Alias, Layers: []int{t.Layer}, Since: since, UID: t.UID, GID: t.GID, OnDisk: t.OnDisk,
			Device: t.Device, Inode: t.Inode,
		}
		if t.Image {
			tree.Image = image
		} else {
			tree.Handle = HandleOf(t)
		}
		all = append(all, tree)
	}
	return all
}

// ImageTree is the tree that is the root of an image, nil if there is none.
func ImageTree(trees []Tree) *Tree {
	for i := range trees {
		if trees[i].Image != "" {
			return &trees[i]
		}
	}
	return nil
}

// ReadOnly is a detached read-only mount of a directory, or the directory itself if the
// kernel cannot make such a mount (before Linux 6.15). Only the sandbox's owner gets it,
// and the directories above are closed to all users but root.
func ReadOnly(dir *os.File) (*os.File, error) {
	tree, err := unix.OpenTree(int(dir.Fd()), "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if errors.Is(err, unix.EINVAL) {
		return dir, nil
	}
	if err != nil {
		return nil, os.NewSyscallError("open_tree", err)
	}
	mount := os.NewFile(uintptr(tree), dir.Name())
	err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC,
	})
	if err != nil {
		return nil, errors.Join(os.NewSyscallError("mount_setattr", err), mount.Close())
	}
	return mount, nil
}

// HandleOf is the handle of an overlaid directory. Nil: the file system has no handles,
// or the path leads to another directory by now.
func HandleOf(t rootfs.Tree) *FileHandle {
	fd, err := unix.Open(t.Path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	if !isDir(fd, t.Device, t.Inode) {
		return nil
	}
	h, _, err := unix.NameToHandleAt(fd, "", unix.AT_EMPTY_PATH)
	if err != nil {
		return nil
	}
	return &FileHandle{Type: h.Type(), Bytes: h.Bytes()}
}

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

// Open opens the overlaid directory at its path, for looks at names. Another directory at the path is an error.
func (t Tree) Open() (*os.File, error) {
	f, err := os.OpenFile(t.Path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err == nil && !isDir(int(f.Fd()), t.Device, t.Inode) {
		err = errors.Join(fmt.Errorf("%s: another directory is there: %w", t.Path, fs.ErrNotExist), f.Close())
	}
	if err != nil {
		return nil, err
	}
	return f, nil
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

// TreeConfig is the part of a sandbox's configuration that rootfs needs to open a tree for a
// sandbox that is up. The launcher's own rights open the tree.
func (r Record) TreeConfig(in Roots) rootfs.Config {
	return rootfs.Config{
		Private:  in.Private(),
		IDBase:   r.IDBase,
		Hostname: r.Config.Hostname,
		User:     rootfs.User{UID: r.Config.User.UID, GID: r.Config.User.GID, Home: spec.HomePath},
	}
}

// StampsPath is the file with the stamps of a tree. Its name has the tree's place in the
// record and the age of its layers, so that stamps of older layers are not used. The file
// is a list in the order of the paths.
func (s *Sandbox) StampsPath(i int, t Tree) string {
	return filepath.Join(s.Path(), "applied", fmt.Sprintf("%d-%d", i, t.Since.UnixNano()))
}
