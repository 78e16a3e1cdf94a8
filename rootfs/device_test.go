package rootfs

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/devices"
)

func TestDevicesCanBeUsed(t *testing.T) {
	testhost.PrivateMounts(t)
	r, m := mounted(t, testConfig())
	// A file system that was mounted in a user namespace would refuse it.
	if err := os.WriteFile(filepath.Join(m.Devices, "null"), []byte("x"), 0); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(filepath.Join(m.Devices, "null")); err != nil || len(text) > 0 {
		t.Errorf("null has %q, %v", text, err)
	}
	if notes := r.Notes(); len(notes) > 0 {
		t.Errorf("notes: %q", notes)
	}
}

func TestWithoutMknodTheHostsDevicesRemain(t *testing.T) {
	testhost.PrivateMounts(t) // its thread has the capabilities to itself
	r := open(t, testConfig())
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var had [2]unix.CapUserData
	if err := unix.Capget(&header, &had[0]); err != nil {
		t.Fatal(err)
	}
	without := had
	without[0].Effective &^= 1 << unix.CAP_MKNOD
	if err := unix.Capset(&header, &without[0]); err != nil {
		t.Fatal(err)
	}
	m, err := r.Mount(stage(t))
	if err := unix.Capset(&header, &had[0]); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if m.Devices != "" || !slices.Contains(r.Notes(), devices.ErrShared.Error()) {
		t.Errorf("devices %q, notes %q", m.Devices, r.Notes())
	}
}
