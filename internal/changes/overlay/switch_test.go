package overlay

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/mountns"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

func (b *testBox) list(t *testing.T, dirs ...string) string {
	t.Helper()
	return b.sh(t, "cd /; find "+strings.Join(dirs, " ")+` -printf '%p %y %m\n' -type f -exec cat {} + | LC_ALL=C sort`)
}

func TestDiscardShowsTheHostsFilesAgain(t *testing.T) {
	dir := bound(t)
	b := newTestBox(t, spec.Config{Overlays: []string{dir}})
	before, since := b.list(t, dir), b.Current().Trees[0].Since
	for range 3 {
		b.sh(t, "cd "+dir+"; echo x > given; mkdir -p a/b; echo y > a/b/c; echo mine > /workspace/mine")
		if err := b.Discard(t.Context()); err != nil {
			t.Fatal(err)
		}
		if now := b.list(t, dir); now != before {
			t.Errorf("after a discard there is\n%s\nwhere there was\n%s", now, before)
		}
		now := b.Current().Trees[0]
		if !now.Since.After(since) || len(now.Layers) != 1 || b.Current().Switch != nil {
			t.Errorf("the tree is %+v", now)
		}
		since = now.Since
	}
	if got := b.sh(t, "cat mine"); got != "mine\n" {
		t.Errorf("the workspace has %q", got)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "given")); err != nil || string(text) != "bound\n" {
		t.Errorf("on the host: %q, %v", text, err)
	}
}

// A snapshot keeps the layers, and the sandbox goes on with new ones.
func TestASnapshotLeavesTheFilesOfTheSandbox(t *testing.T) {
	dir := bound(t)
	b := newTestBox(t, spec.Config{Overlays: []string{dir}, Storage: spec.StorageDisk})
	b.sh(t, "echo old > f; mkdir d; echo x > d/x; rm "+dir+"/given; echo made > "+dir+"/made")
	before, since := b.list(t, "/workspace", dir), b.Current().Trees[0].Since
	if err := b.Snapshot(t.Context(), "snap"); err != nil {
		t.Fatal(err)
	}
	if now := b.list(t, "/workspace", dir); now != before {
		t.Errorf("after a snapshot there is\n%s\nwhere there was\n%s", now, before)
	}
	b.sh(t, "echo new > f; rm -r d; echo later > "+dir+"/later")
	s, err := b.keeper.ReadSnapshot("snap", 0)
	if err != nil {
		t.Fatal(err)
	}
	for place, file := range map[string]string{"/workspace": "f", dir: "made"} {
		ref := s.Places[place][0]
		text, err := os.ReadFile(StorePath(b.store, filepath.Join(ref.Dir, file)))
		if want := map[string]string{"f": "old\n", "made": "made\n"}[file]; err != nil || string(text) != want {
			t.Errorf("the layer %s of %s has %q, %v", ref.Dir, place, text, err)
		}
	}
	if now := b.Current().Trees[0]; !now.Since.Equal(since) || len(now.Layers) != 2 {
		t.Errorf("the tree is %+v", now)
	}
	if err := b.Snapshot(t.Context(), "snap"); !errors.Is(err, fault.ErrExists) {
		t.Errorf("a second one of the name: %v", err)
	}
	if got := b.sh(t, "cat f"); got != "new\n" {
		t.Errorf("then there is %q", got)
	}
}

// A switch replaces the layers that undo data is for. A refused switch leaves both.
func TestRefusedSwitchKeepsUndoHistory(t *testing.T) {
	dir := bound(t)
	b := newTestBox(t, spec.Config{Overlays: []string{dir}, Storage: spec.StorageDisk})
	for name, change := range map[string]func() error{
		"discard":  func() error { return b.Discard(t.Context()) },
		"snapshot": func() error { return b.Snapshot(t.Context(), "snap") },
	} {
		b.sh(t, "echo before > "+dir+"/given")
		if err := b.transact(t, "echo joined > "+dir+"/given"); err != nil {
			t.Fatal(err)
		}
		open := b.open(t, dir+"/open")
		if err := change(); !errors.Is(err, fault.ErrBusy) {
			t.Errorf("%s while a file is open: %v", name, err)
		}
		open.Close()
		if err := b.Undo(t.Context(), 1); err != nil {
			t.Errorf("undo after a refused %s: %v", name, err)
		}
		if got := b.sh(t, "cat "+dir+"/given; touch after /home/sandbox/after "+dir+"/after"); got != "before\n" {
			t.Errorf("after the undo there is %q", got)
		}
		if err := b.transact(t, "echo joined > "+dir+"/given"); err != nil {
			t.Fatal(err)
		}
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if err := b.Undo(t.Context(), 1); !isConfigError(err) {
			t.Errorf("undo after a %s: %v", name, err)
		}
	}
}

// open opens a file of the sandbox for writing.
func (b *testBox) open(t *testing.T, path string) (f *os.File) {
	t.Helper()
	thread, err := mountns.Enter(b.Init())
	if err != nil {
		t.Fatal(err)
	}
	defer thread.Stop()
	if err := thread.Do(func() (err error) { f, err = os.Create(path); return err }); err != nil {
		t.Fatal(err)
	}
	return f
}

// A switch that cannot be done says the reason before it changes a layer.
func TestASwitchIsRefused(t *testing.T) {
	dir := bound(t)
	b := newTestBox(t, spec.Config{Overlays: []string{dir}, Storage: spec.StorageDisk})
	tx, err := b.Begin(t.Context(), b.Current())
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Discard(t.Context()); !errors.Is(err, fault.ErrBusy) || !strings.Contains(err.Error(), "a transaction runs there") {
		t.Errorf("beside a transaction: %v", err)
	}
	if err := tx.Drop(); err != nil {
		t.Fatal(err)
	}
	many := b.Current().Clone()
	many.Stacks[spec.WorkspacePath] = record.Stack{Below: make([]record.LayerRef, MaxLayers)}
	if err := b.Keep(many); err != nil {
		t.Fatal(err)
	}
	if err := b.Snapshot(t.Context(), "snap"); !isConfigError(err) || !strings.Contains(err.Error(), "layers") {
		t.Errorf("above too many layers: %v", err)
	}
	if names, err := b.keeper.Snapshots(0); err != nil || len(names) > 0 || b.Current().Switch != nil {
		t.Errorf("there are the snapshots %q, and the switch %+v, %v", names, b.Current().Switch, err)
	}
	if err := newTestBox(t, spec.Config{}).Discard(t.Context()); !isConfigError(err) {
		t.Errorf("without an overlay: %v", err)
	}
}

// A killed switch is taken back before the record has its layers, and finished after that.
func TestAKilledSwitchIsEnded(t *testing.T) {
	dir := bound(t)
	for name, done := range map[string]bool{"before it was done": false, "after that": true} {
		b := newTestBox(t, spec.Config{Overlays: []string{dir}})
		b.sh(t, "echo changed > "+dir+"/given")
		half := b.Current().Clone()
		half.Switch = &record.Switch{Layers: map[string]int{dir: 7}, Paused: true, Done: done}
		if err := os.MkdirAll(StorePath(b.store, "layer/7/data"), 0o700); err != nil {
			t.Fatal(err)
		}
		if done {
			newUpper(&half, record.Place{Path: dir}, 7)
		}
		thread, err := mountns.Enter(b.Init())
		if err != nil {
			t.Fatal(err)
		}
		places := covers{{Place: record.Place{Path: dir}}}
		if err := thread.Do(func() error { return places.freeze(true) }); err != nil {
			t.Fatal(err)
		}
		thread.Stop()
		if err := b.Keep(half); err != nil {
			t.Fatal(err)
		}
		if err := b.TakeBackSwitch(); err != nil {
			t.Fatal(err)
		}
		if got := b.sh(t, "cat "+dir+"/given; echo more > "+dir+"/more"); got != "changed\n" {
			t.Errorf("%s: there is %q", name, got)
		}
		_, err = os.Lstat(StorePath(b.store, "layer/7/data/more"))
		if (err == nil) != done || b.Current().Switch != nil {
			t.Errorf("%s: the new layer has the next file: %v", name, err)
		}
	}
}

// A fork begins with the snapshot that its client has asked for, and has a layer for each of its places.
func TestAForkRefusesAnotherSnapshot(t *testing.T) {
	b := newTestBox(t, spec.Config{})
	good := Snapshot{Version: snapshotVersion, Created: time.Unix(1, 0).UTC(), Places: map[string][]record.LayerRef{
		spec.WorkspacePath: {{Image: "0.img", Dir: "area/workspace"}}, "/srv/none": nil,
	}}
	dir := b.keeper.SnapshotDir("snap")
	testhost.WriteFile(t, filepath.Join(dir, "0.img"), "")
	if err := good.write(dir); err != nil {
		t.Fatal(err)
	}
	for says, change := range map[string]func(s *Snapshot){
		"/srv/none, which this sandbox has no layer for": func(*Snapshot) {},
		"was replaced meanwhile":                         func(s *Snapshot) { s.Created = s.Created.Add(1) },
		"leave out --image":                              func(s *Snapshot) { s.Trees = []record.Tree{{Path: "/", Image: "sha256:0123"}} },
	} {
		s := good
		change(&s)
		if _, err := b.Fork(t.Context(), "snap", s); !isConfigError(err) || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want %q", err, says)
		}
	}
	if _, err := b.Fork(t.Context(), "none", good); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of a snapshot that was removed: %v", err)
	}
}
