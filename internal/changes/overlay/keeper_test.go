package overlay

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// A store that is more than half full does not keep its trash.
func TestAFullStoreLosesItsTrash(t *testing.T) {
	testhost.PrivateMounts(t)
	for _, c := range []struct{ files, stay int }{{40, 40}, {60, 0}} {
		top := t.TempDir()
		if err := unix.Mount("none", top, "tmpfs", 0, "nr_inodes=100"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(top, unix.MNT_DETACH) })
		trash := filepath.Join(top, "trash")
		if err := os.MkdirAll(filepath.Join(trash, "1"), 0o700); err != nil {
			t.Fatal(err)
		}
		for i := range c.files {
			testhost.WriteFile(t, fmt.Sprintf("%s/1/%d", trash, i), "")
		}
		store, err := os.Open(top)
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		if err := relieve(t.Context(), store); err != nil {
			t.Fatal(err)
		}
		left, err := filepath.Glob(trash + "/1/*")
		if err != nil || len(left) != c.stay {
			t.Errorf("of %d files %d stay, want %d: %v", c.files, len(left), c.stay, err)
		}
	}
}
