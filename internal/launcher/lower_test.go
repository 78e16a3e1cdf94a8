package launcher

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
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
			lost := record.Tree{Path: dir, Device: st.Dev, Inode: st.Ino, Handle: record.HandleOf(at)}
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
