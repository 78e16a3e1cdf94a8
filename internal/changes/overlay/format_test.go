package overlay

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/golden"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// second is a time with all of its digits.
func second(n int) time.Time { return time.Date(2026, 11, 30, 12, 0, n, 123456789, time.UTC) }

// fullSnapshot is a snapshot with each member. The tests of package record have the members of Config.
func fullSnapshot() Snapshot {
	return Snapshot{
		Version: snapshotVersion, UID: 1000, Created: second(1),
		Config: spec.Config{Overlays: []string{"/srv/tree"}, Storage: spec.StorageDisk, Network: spec.NetworkNone, Cwd: "/srv/tree"},
		Places: map[string][]record.LayerRef{"/workspace": {{Image: "0.img", Dir: "layer/2/data"}, {Image: "1.img", Dir: "area/workspace"}}},
		Trees: []record.Tree{{
			Path: "/srv/tree", Alias: "/mnt/tree", Layers: []int{3, 1}, Since: second(2), UID: 1000, GID: 1001, OnDisk: true, Image: "sha256:0123",
			Device: 64769, Inode: 1 << 60, Handle: &record.FileHandle{Type: 129, Bytes: []byte{1, 2, 254}},
		}},
		Use: "snapshot:clean:0123456789ab-random", Renamed: true,
	}
}

// A member that is renamed, or that gets another form, is lost in the snapshots that are there.
func TestASnapshotIsWrittenAsBefore(t *testing.T) {
	golden.Full(t, fullSnapshot(), ".Config")
	s := fullSnapshot()
	dir := t.TempDir()
	if err := s.write(dir); err != nil {
		t.Fatal(err)
	}
	written, err := os.ReadFile(filepath.Join(dir, snapshotFile))
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "snapshot-1.json", written)
}

// The first releases have written the same version, without the members that came later.
func TestSnapshotsOfEachReleaseAreRead(t *testing.T) {
	first := fullSnapshot()
	first.Use, first.Renamed = "", false
	first.Trees[0].Alias, first.Trees[0].Image = "", ""
	for name, want := range map[string]Snapshot{"snapshot-1.json": fullSnapshot(), "snapshot-1-first.json": first} {
		content, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		k := newTestKeeper(t)
		testhost.WriteFile(t, filepath.Join(k.SnapshotDir("clean"), snapshotFile), string(content))
		if got, err := k.ReadSnapshot("clean", want.UID); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v; read\n%+v\nwant\n%+v", name, err, got, want)
		}
	}
}

// A member of a journal that is lost changes the transactions that can be undone.
func TestAJournalIsWrittenAndReadAsBefore(t *testing.T) {
	full := Journal{
		State: txUndoing, Owner: process.ID{Pid: 201, Start: 202, Namespace: "pid:[4026531836]"}, Since: second(1), Joined: second(2),
		Places: []record.Place{{Path: "/data", Host: "/srv/data", Same: "/srv/tree"}}, Done: 1, Until: 2,
		Ours:    []span{{From: second(3), To: second(4), Paths: []string{"/data/file"}}},
		Undoing: &span{From: second(5), To: second(6), Paths: []string{"/data"}},
	}
	golden.Full(t, full)
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := full.Write(dir); err != nil {
		t.Fatal(err)
	}
	written, err := readIn(dir, journalName)
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "journal.json", written)
	if got, err := readJournal(dir); err != nil || !reflect.DeepEqual(got, full) {
		t.Errorf("%v; read\n%+v\nwant\n%+v", err, got, full)
	}
}
