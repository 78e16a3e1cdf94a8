package overlay

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/trash"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// imageUses are the images of a launcher of which only the uses matter: the image by its use.
type imageUses map[string]string

func (imageUses) Mount(record.Record, string) (*os.File, error) { return nil, errors.ErrUnsupported }
func (u imageUses) Use(_ uint32, id, by string) error           { u[by] = id; return nil }
func (u imageUses) Release(by string) error                     { delete(u, by); return nil }

// testKeeper is a keeper of directories of its own.
type testKeeper struct {
	*Keeper
	uses imageUses
}

func newTestKeeper(t *testing.T) testKeeper {
	t.Helper()
	in, uses, sweeper := record.Roots{State: t.TempDir(), Data: t.TempDir()}, imageUses{}, trash.NewSweeper()
	t.Cleanup(sweeper.Stop)
	var tending sync.WaitGroup
	t.Cleanup(tending.Wait)
	self := func() (process.ID, error) { return process.Of(os.Getpid()) }
	return testKeeper{NewKeeper(in, self, uses, sweeper, trash.New(in.Data, sweeper), &tending), uses}
}

// put writes the description of a snapshot.
func (k testKeeper) put(t *testing.T, name, description string) {
	t.Helper()
	testhost.WriteFile(t, filepath.Join(k.SnapshotDir(name), snapshotFile), description)
}

// switched is the record of a sandbox on disk whose files become a snapshot: with a layer of its own for each place, and one of
// an older snapshot. The sandbox has ended.
func switched(t *testing.T, k testKeeper, name string) record.Record {
	t.Helper()
	for _, image := range []string{"own.img", "older.img"} {
		testhost.WriteFile(t, k.ImagePath(image), image)
	}
	ended, err := k.self()
	if err != nil {
		t.Fatal(err)
	}
	ended.Start += 2
	return record.Record{
		Version: record.FormatVersion, UID: 1000, Image: "own.img", Init: ended,
		Config: spec.Config{Cwd: "/srv/tree"},
		Trees:  []record.Tree{{Path: "/", Layers: []int{0}, Image: "sha256:0123"}},
		Stacks: map[string]record.Stack{
			spec.WorkspacePath: {Layers: []int{2, 1}, Below: []record.LayerRef{{Image: "older.img", Dir: "area/workspace"}}},
		},
		Switch: &record.Switch{Snapshot: name, Draft: "." + DraftName(ended), Renamed: true},
	}
}

// A snapshot keeps the images of a sandbox by names of its own, and uses the image below.
func TestASnapshotHasTheLayersOfEachPlace(t *testing.T) {
	k := newTestKeeper(t)
	r := switched(t, k, "snap")
	if err := k.DraftSnapshot(r); err != nil {
		t.Fatal(err)
	}
	if names, err := k.Snapshots(0); err != nil || len(names) > 0 {
		t.Errorf("before its end there are %q, %v", names, err)
	}
	r.Switch.Done = true
	for range 2 { // a killed process can have given the name
		if err := k.EndDraft(r); err != nil {
			t.Fatal(err)
		}
	}
	s, err := k.ReadSnapshot("snap", 1000)
	if err != nil || s.UID != 1000 || !s.Renamed || s.Config.Cwd != "/srv/tree" || s.ImageTree() == nil {
		t.Fatalf("%+v, %v", s, err)
	}
	if !maps.Equal(k.uses, imageUses{s.Use: "sha256:0123"}) {
		t.Errorf("uses %v, and the snapshot has %q", k.uses, s.Use)
	}
	for place, want := range map[string][]string{
		"/":                {"layer/0/data of own.img"},
		spec.HomePath:      {"area/home of own.img"},
		spec.WorkspacePath: {"layer/2/data of own.img", "layer/1/data of own.img", "area/workspace of own.img", "area/workspace of older.img"},
	} {
		var got []string
		for _, ref := range s.Places[place] {
			image, err := os.ReadFile(filepath.Join(k.SnapshotDir("snap"), ref.Image))
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, fmt.Sprintf("%s of %s", ref.Dir, image))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", place, got, want)
		}
	}
	if len(s.Places) != 3 {
		t.Errorf("there are the places %v", s.Places)
	}
	if err := k.RemoveSnapshot(t.Context(), "snap", 1000); err != nil {
		t.Fatal(err)
	}
	if len(k.uses) > 0 || statedir.Exists(k.SnapshotDir("snap")) {
		t.Errorf("after the removal there are the uses %v", k.uses)
	}
}

// A switch that fails takes its draft back, and so does one whose name another snapshot has got.
func TestADraftThatGetsNoNameGoes(t *testing.T) {
	for name, end := range map[string]func(k testKeeper, r record.Record) error{
		"taken back": func(k testKeeper, r record.Record) error { return k.EndDraft(r) },
		"the name is taken": func(k testKeeper, r record.Record) error {
			r.Switch.Done = true
			k.put(t, "snap", `{"version":1,"uid":7}`)
			if err := k.EndDraft(r); !errors.Is(err, fault.ErrExists) || !strings.Contains(err.Error(), "choose another name") {
				return fmt.Errorf("got %w", err)
			}
			return nil
		},
		"its process was killed": func(k testKeeper, r record.Record) error {
			if err := k.PruneDrafts(map[string]bool{r.Switch.Draft: true}); err != nil || !statedir.Exists(k.DraftOf(r)) {
				return fmt.Errorf("a wanted draft is gone: %w", err)
			}
			return k.PruneDrafts(nil)
		},
	} {
		k := newTestKeeper(t)
		r := switched(t, k, "snap")
		if err := errors.Join(k.DraftSnapshot(r), end(k, r)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if statedir.Exists(k.DraftOf(r)) || len(k.uses) > 0 {
			t.Errorf("%s: the draft is there, or the uses %v", name, k.uses)
		}
	}
}

// The draft of a process that lives may get its name later.
func TestADraftOfALivingProcessStays(t *testing.T) {
	k := newTestKeeper(t)
	r := switched(t, k, "snap")
	self, err := k.self()
	if err != nil {
		t.Fatal(err)
	}
	r.Switch.Draft = "." + DraftName(self)
	if err := errors.Join(k.DraftSnapshot(r), k.PruneDrafts(nil)); err != nil || !statedir.Exists(k.DraftOf(r)) {
		t.Errorf("the draft is gone: %v", err)
	}
}

// A user has the snapshots of that user, and root has all.
func TestASnapshotIsOfItsUser(t *testing.T) {
	k := newTestKeeper(t)
	k.put(t, "theirs", `{"version":1,"uid":7}`)
	k.put(t, "mine", `{"version":1,"uid":1000}`)
	for uid, want := range map[uint32][]string{0: {"mine", "theirs"}, 7: {"theirs"}, 1000: {"mine"}, 77: nil} {
		if got, err := k.Snapshots(uid); err != nil || !slices.Equal(got, want) {
			t.Errorf("user %d has %q, %v, want %q", uid, got, err, want)
		}
	}
	for _, name := range []string{"theirs", "none", "", "x/../" + k.CgroupPrefix() + "mine"} {
		_, err := k.ReadSnapshot(name, 1000)
		if removal := k.RemoveSnapshot(t.Context(), name, 1000); !errors.Is(err, fault.ErrNotFound) || !errors.Is(removal, fault.ErrNotFound) {
			t.Errorf("%q: read %v, removal %v", name, err, removal)
		}
	}
	if err := k.RemoveSnapshot(t.Context(), "x/../"+k.CgroupPrefix()+"mine", 0); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("a path: %v", err)
	}
}

// A crash of the host can leave a snapshot without its description, and a newer release can have written another one. Only root
// removes such a snapshot.
func TestRootRemovesASnapshotThatCannotBeRead(t *testing.T) {
	k := newTestKeeper(t)
	for name, says := range map[string]string{
		`{"version":1,"uid":1000`: "as root, remove it with snapshot --remove snap",
		"":                        "as root, remove it with snapshot --remove snap",
		fmt.Sprintf(`{"version":%d,"uid":1000}`, snapshotVersion+1):     fmt.Sprintf("snapshot snap: version %d is of another release", snapshotVersion+1),
		fmt.Sprintf(`{"version":%d,"places":"new"}`, snapshotVersion+1): fmt.Sprintf("snapshot snap: version %d is of another release", snapshotVersion+1),
		"missing": fault.ErrNotFound.Error(),
	} {
		k.put(t, "snap", name)
		if name == "missing" {
			if err := os.Remove(filepath.Join(k.SnapshotDir("snap"), snapshotFile)); err != nil {
				t.Fatal(err)
			}
		}
		for _, uid := range []uint32{0, 1000} {
			if _, err := k.ReadSnapshot("snap", uid); err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%q: %v", name, err)
			}
		}
		if names, err := k.Snapshots(0); err != nil || !slices.Equal(names, []string{"snap"}) {
			t.Errorf("%q: there are %q, %v", name, names, err)
		}
		if err := k.RemoveSnapshot(t.Context(), "snap", 1000); err == nil {
			t.Errorf("%q: its user has removed it", name)
		}
		if err := k.RemoveSnapshot(t.Context(), "snap", 0); err != nil || statedir.Exists(k.SnapshotDir("snap")) {
			t.Errorf("%q: it is there, %v", name, err)
		}
	}
}

// A snapshot that another user makes after a removal can have the same name. A removal that began earlier must
// not remove it.
func TestRemovalsOfASnapshotSpareALaterOne(t *testing.T) {
	testhost.Concurrent(t)
	k := newTestKeeper(t)
	// made waits until the name is free.
	made := func(uid uint32) {
		draft := filepath.Join(k.Data, record.SnapshotsName, fmt.Sprintf(".draft-%d", uid))
		testhost.WriteFile(t, filepath.Join(draft, snapshotFile), fmt.Sprintf(`{"version": 1, "uid": %d}`, uid))
		for os.Rename(draft, k.SnapshotDir("name")) != nil {
			if t.Context().Err() != nil {
				return
			}
		}
	}
	for range 300 {
		made(1000)
		var calls sync.WaitGroup
		for range 4 {
			calls.Go(func() {
				if err := k.RemoveSnapshot(t.Context(), "name", 1000); err != nil && !errors.Is(err, fault.ErrNotFound) {
					t.Error(err)
				}
			})
		}
		made(2000)
		calls.Wait()
		if err := k.RemoveSnapshot(t.Context(), "name", 2000); err != nil {
			t.Fatalf("the snapshot of another user: %v", err)
		}
	}
}
