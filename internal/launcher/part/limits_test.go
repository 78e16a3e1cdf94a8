package part

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/store"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A blank has the note about sockets already. Other limits do not repeat it.
func TestALimitIsNotedOnce(t *testing.T) {
	m := &Making{held: cgroups.Limits{Memory: cgroups.Limit{Enforced: true}, Sockets: cgroups.Limit{Reason: "the host has none"}}}
	for range 2 {
		if err := m.limitSockets(); err != nil {
			t.Fatal(err)
		}
	}
	if len(m.Record.Notes) != 1 {
		t.Errorf("notes: %q", m.Record.Notes)
	}
}

// The limits of disk traffic hold for the disk that the store is on.
func TestDiskTrafficIsThatOfTheStoreToo(t *testing.T) {
	l := New(Config{Roots: record.Roots{State: t.TempDir(), Data: t.TempDir()}})
	name, host, err := l.makeImage("box", store.Limits{Bytes: 16 << 20, Files: 1000})
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(l.ImagePath(name))
	defer host.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(host.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	own := spec.Disk{Major: int64(unix.Major(st.Dev)), Minor: int64(unix.Minor(st.Dev))}
	for storage, want := range map[spec.Storage]bool{spec.StorageDisk: true, spec.StorageMemory: false} {
		c := spec.Config{Storage: storage, Limits: spec.Limits{IOWrite: 1 << 20}}
		all, err := limitedDisks(c, Sources{}, fmt.Sprintf("/proc/self/fd/%d", host.Fd()))
		if err != nil || slices.Contains(all, own) != want {
			t.Errorf("%s on %v: limited are %v, %v", storage, own, all, err)
		}
	}
}
