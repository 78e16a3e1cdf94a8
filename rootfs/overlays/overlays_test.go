package overlays

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// A directory that no overlay can have says nothing about the kernel.
func TestARefusedDirectoryIsNoOldKernel(t *testing.T) {
	testhost.NeedRoot(t, "mounts are made")
	dir, err := os.Open("/proc/sys/kernel")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	fs, err := Open(false)
	if err != nil {
		t.Fatal(err)
	}
	defer fs.Close()
	m, err := Overlay{Lower: []*os.File{dir}, Upper: dir, Work: dir}.Mount()
	if !errors.Is(err, unix.EINVAL) || errors.Is(err, ErrDetached) == takesDetached(fs) {
		t.Errorf("%v, %v; the kernel takes detached layers: %t", m, err, takesDetached(fs))
	}
}
