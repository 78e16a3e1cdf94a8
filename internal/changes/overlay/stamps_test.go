package overlay

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// On a full disk the earlier list stays, and nothing of the new one does.
func TestStampsOnAFullDisk(t *testing.T) {
	testhost.PrivateMounts(t)
	name := t.TempDir()
	if err := unix.Mount("tmpfs", name, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(name, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	dir, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	few, many := map[string]layer.Stamp{"/f": {CTime: 1, Source: 2}}, map[string]layer.Stamp{}
	for i := range 10_000 {
		many[fmt.Sprintf("/file-%d", i)] = layer.Stamp{CTime: 1}
	}
	if err := writeStamps(dir, stampsName, few); err != nil {
		t.Fatal(err)
	}
	if err := writeStamps(dir, stampsName, many); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("write: %v", err)
	}
	if got, err := readStamps(dir, stampsName); err != nil || !maps.Equal(got, few) {
		t.Errorf("there is %v, %v", got, err)
	}
	if entries, err := os.ReadDir(name); err != nil || len(entries) != 1 {
		t.Errorf("there are %v, %v", entries, err)
	}
}
