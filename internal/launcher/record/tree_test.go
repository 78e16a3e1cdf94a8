package record

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/rootfs"
)

// A directory of which the kernel makes no mount of its own would show the directories
// above to the client.
func TestAMovedDirectoryIsHandedOutAsAMountOfItsOwn(t *testing.T) {
	for name, c := range map[string]struct {
		flags uintptr
		found bool
	}{"bindable": {unix.MS_PRIVATE, true}, "unbindable": {unix.MS_UNBINDABLE, false}} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			if err := unix.Mount("tmpfs", top, "tmpfs", 0, ""); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := unix.Unmount(top, unix.MNT_DETACH); err != nil {
					t.Error(err)
				}
			})
			dir, away := filepath.Join(top, "dir"), filepath.Join(top, "away")
			err := errors.Join(unix.Mount("", top, "", c.flags, ""), os.Mkdir(dir, 0o700), os.Mkdir(away, 0o700))
			var st unix.Stat_t
			if err = errors.Join(err, unix.Stat(dir, &st)); err != nil {
				t.Fatal(err)
			}
			at := rootfs.Tree{Path: dir, Device: st.Dev, Inode: st.Ino}
			lost := Tree{Path: dir, Device: st.Dev, Inode: st.Ino, Handle: HandleOf(at)}
			if err := os.Rename(dir, filepath.Join(away, "dir")); err != nil {
				t.Fatal(err)
			}
			found := lost.Lost(true)
			if found != nil {
				defer found.Close()
			}
			if (found != nil) != c.found {
				t.Errorf("found %v", found)
			}
		})
	}
}

// Another directory can have the path of an overlaid one.
func TestAnotherDirectoryIsNotTheTree(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	var st unix.Stat_t
	if err := errors.Join(os.Mkdir(dir, 0o700), unix.Stat(dir, &st)); err != nil {
		t.Fatal(err)
	}
	at := rootfs.Tree{Path: dir, Device: st.Dev, Inode: st.Ino, Layer: 3, UID: 1, GID: 2}
	since := Now()
	tree := NewTrees([]rootfs.Tree{at, {Path: "/", Image: true}}, "sha256:0123", since)
	if tree[0].Image != "" || tree[1].Image != "sha256:0123" || tree[1].Handle != nil || ImageTree(tree) != &tree[1] || ImageTree(tree[:1]) != nil {
		t.Errorf("the trees are %+v", tree)
	}
	f, err := tree[0].Open()
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if found := tree[0].Lost(false); found != nil {
		t.Error("a directory at its path is lost")
		found.Close()
	}
	if err := errors.Join(os.Rename(dir, dir+"-moved"), os.Mkdir(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	if f, err := tree[0].Open(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("opened %v, %v", f, err)
	}
	if h := HandleOf(at); h != nil {
		t.Errorf("the handle of another directory: %v", h)
	}
	for unprivileged, uid := range map[bool]uint32{false: st.Uid + 1, true: st.Uid} {
		lost := tree[0]
		lost.UID = uid
		found := lost.Lost(unprivileged)
		if found == nil {
			t.Errorf("unprivileged %t: the moved directory is not found", unprivileged)
			continue
		}
		if err := unix.Mkdirat(int(found.Fd()), "new", 0o755); !errors.Is(err, unix.EROFS) {
			t.Errorf("unprivileged %t: the mount of the moved directory is writable: %v", unprivileged, err)
		}
		found.Close()
	}
	stolen := tree[0]
	stolen.UID = st.Uid + 1
	if found := stolen.Lost(true); found != nil {
		t.Error("a client gets a directory that belongs to another user by now")
		found.Close()
	}
}
