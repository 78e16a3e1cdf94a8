package inflate

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// Of a disk that is full nothing can be kept: the kernel says so.
func TestAFullDiskIsSaidToBeFull(t *testing.T) {
	testhost.NeedRoot(t, "a mount")
	testhost.PrivateMounts(t)
	for _, free := range []int{0, 40 << 10, 600 << 10} {
		disk := t.TempDir()
		if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=2m,mode=0700"); err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(disk, unix.MNT_DETACH)
		if err := os.WriteFile(filepath.Join(disk, "filling"), make([]byte, 2<<20-free), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Create(filepath.Join(disk, "file"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		to, err := Sparing(f)
		if err != nil {
			t.Fatal(err)
		}
		for range 100 {
			if _, err = to.Write(make([]byte, 32<<10)); err != nil {
				break
			}
		}
		var none *NoRoomError
		if !errors.Is(err, unix.ENOSPC) || errors.As(err, &none) {
			t.Errorf("with %d bytes: %v", free, err)
		}
		if at, err := f.Seek(0, io.SeekCurrent); err != nil || at != int64(free) {
			t.Errorf("with %d bytes: %d were written, %v", free, at, err)
		}
	}
}
