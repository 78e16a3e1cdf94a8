package launcher

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/trash"
)

// freeHost removes the files of fillHost.
func freeHost(t *testing.T, host *os.File) {
	t.Helper()
	if err := os.Remove(fmt.Sprintf("/proc/self/fd/%d/others", host.Fd())); err != nil {
		t.Fatal(err)
	}
}

// fillToTheLastName takes the room of a small disk to the last byte and name.
func fillToTheLastName(t *testing.T, host *os.File) {
	t.Helper()
	fillHost(t, host)
	for i := range 5000 {
		err := os.WriteFile(fmt.Sprintf("/proc/self/fd/%d/name-%d", host.Fd(), i), nil, 0o600)
		if errors.Is(err, unix.ENOSPC) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("the disk has room for any number of names")
}

func freeBytes(t *testing.T, l *Launcher) int64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(l.Data, &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Bavail) * st.Bsize
}

// The disk has no room for the trash, which takes a name for each thing.
func TestSandboxIsRemovedOnAFullDisk(t *testing.T) {
	l, host := newSmallLauncher(t, 80<<20)
	sb := createUp(t, l, "box", onDisk)
	if r, out := sh(t, sb, "head -c 20m /dev/urandom > file && sync file"); !r.OK() {
		t.Fatalf("%+v %s", r, out.stderr)
	}
	fillToTheLastName(t, host)
	if _, err := os.Stat(filepath.Join(l.Data, trash.TrashName)); err == nil {
		t.Fatal("there is a trash before anything was removed")
	}
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	if free := freeBytes(t, l); free < 20<<20 {
		t.Errorf("%d bytes are free", free)
	}
	checkNoImage(t, l)
	checkNothingLeft(t, l)
	freeHost(t, host)
	createUp(t, l, "box", onDisk)
}

func TestSnapshotIsRemovedOnAFullDisk(t *testing.T) {
	if reason := layersOfAnywhere(t); reason != "" {
		t.Skip(reason)
	}
	l, host := newSmallLauncher(t, 80<<20)
	sb := createUp(t, l, "box", onDisk)
	if r, out := sh(t, sb, "head -c 20m /dev/urandom > file && sync file"); !r.OK() {
		t.Fatalf("%+v %s", r, out.stderr)
	}
	if err := sb.Snapshot(t.Context(), "snap"); err != nil {
		t.Fatal(err)
	}
	fillToTheLastName(t, host)
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	if free := freeBytes(t, l); free > 20<<20 {
		t.Errorf("%d bytes are free, and the snapshot is not removed", free)
	}
	fillToTheLastName(t, host)
	if err := l.RemoveSnapshot(t.Context(), "snap", 0); err != nil {
		t.Fatal(err)
	}
	if free := freeBytes(t, l); free < 20<<20 {
		t.Errorf("%d bytes are free", free)
	}
	if names, err := l.Snapshots(t.Context(), 0); err != nil || len(names) != 0 {
		t.Errorf("snapshots: %q, %v", names, err)
	}
	checkNoImage(t, l)
}
