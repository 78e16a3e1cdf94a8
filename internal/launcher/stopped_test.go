package launcher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/overlay"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// contentOf reads a file of a tree's layers as the sandbox has it, with its owner.
func contentOf(t *testing.T, tree layer.Overlay, name string) (text string, uid uint32) {
	t.Helper()
	for _, l := range tree.Layers {
		file := path.Join(fmt.Sprintf("/proc/self/fd/%d", l.Dir.Fd()), name)
		var st unix.Stat_t
		err := unix.Lstat(file, &st)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		b, readErr := os.ReadFile(file)
		if err := errors.Join(err, readErr); err != nil {
			t.Fatal(err)
		}
		return string(b), st.Uid
	}
	t.Errorf("no layer has %s", name)
	return "", 0
}

func TestStoppedSandboxHasItsLayers(t *testing.T) {
	l := newTestLauncher(t)
	dir := overlaid(t)
	sb := createUp(t, l, "box", spec.Config{Storage: spec.StorageDisk, Overlays: []string{dir}})
	sh(t, sb, "cd "+dir+" && echo more >new && chmod 600 new && rm -r dir && mkdir dir")
	killInit(t, sb)
	if _, err := l.Open(t.Context(), "box"); !errors.Is(err, fault.ErrNotRunning) {
		t.Errorf("open: %v", err)
	}
	for _, unprivileged := range []bool{false, true} {
		stopped, err := l.OpenStopped(t.Context(), "box")
		if err != nil {
			t.Fatal(err)
		}
		trees, err := layersOf(t, stopped, unprivileged)
		if err != nil || len(trees) != 1 {
			t.Fatal(trees, err)
		}
		user := recordOf(t, l, "box").Config.User.UID
		text, uid := contentOf(t, trees[0], "new")
		want := layer.Owner{UID: user, GID: user}
		if unprivileged {
			want = trees[0].Owner
		}
		if text != "more\n" || uid != trees[0].User.UID || trees[0].User != want || trees[0].Base != 0 {
			t.Errorf("unprivileged %v: %q of user %d in %+v", unprivileged, text, uid, trees[0])
		}
		if marks := trees[0].Layers[0].Marks; unprivileged != marks["dir"].Opaque {
			t.Errorf("unprivileged %v: marks %+v", unprivileged, marks)
		}
		stamp := time.Now().UnixNano()
		if err := stopped.Applied(t.Context(), dir, protocol.StampList(map[string]layer.Stamp{"new": {CTime: stamp}})); err != nil {
			t.Error(err)
		}
		again, err := layersOf(t, stopped, unprivileged)
		if err != nil || !maps.Equal(again[0].Stamps, map[string]layer.Stamp{"new": {CTime: stamp}}) {
			t.Errorf("stamps: %+v, %v", again, err)
		}
		closeTrees(trees)
		closeTrees(again)
		stopped.Release()
	}
	eventually(t, "no loop device is left", func() bool { return len(imagesIn(t, l.Data)) == 0 })
	if err := l.Remove(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
	checkNoImage(t, l)
}

func TestStoppedSandboxInMemorySaysThatItsWritesAreLost(t *testing.T) {
	l := newTestLauncher(t)
	dir := overlaid(t)
	sb := createUp(t, l, "box", spec.Config{Storage: spec.StorageMemory, Overlays: []string{dir}})
	killInit(t, sb)
	_, err := layersOf(t, sb, false)
	for what, err := range map[string]error{"layers": err, "applied": sb.Applied(t.Context(), dir, protocol.StampList(nil))} {
		if !errors.Is(err, fault.ErrNotRunning) || !strings.Contains(err.Error(), "in memory and are lost") {
			t.Errorf("%s: %v", what, err)
		}
	}
	again := upAgain(t, l, "box")
	if notes := strings.Join(again.session.Current().Notes, "\n"); !strings.Contains(notes, "sandbox box before this one had stopped; its writes were in memory and are lost") {
		t.Errorf("notes of the new one: %q", notes)
	}
	if names, err := l.Snapshots(t.Context(), 0); err != nil || len(names) > 0 {
		t.Errorf("snapshots %q, %v", names, err)
	}
}

func TestStoppedForkHasItsLayers(t *testing.T) {
	if reason := layersOfAnywhere(t); reason != "" {
		t.Skip(reason)
	}
	l := newTestLauncher(t)
	dir := overlaid(t)
	c := spec.Config{Storage: spec.StorageDisk, Overlays: []string{dir}}
	sb := createUp(t, l, "source", c)
	sh(t, sb, "echo snapshot > "+dir+"/below")
	if err := sb.Snapshot(t.Context(), "snap"); err != nil {
		t.Fatal(err)
	}
	for _, storage := range []spec.Storage{spec.StorageDisk, spec.StorageMemory} {
		c.Storage = storage
		fork := forkOf(t, l, "snap", c)
		sh(t, fork, "echo fork > "+dir+"/above")
		if storage == spec.StorageMemory { // in which the layers have different ids
			checkLayers(t, fork, map[string]string{"below": "snapshot\n", "above": "fork\n"})
			continue
		}
		killInit(t, sb)
		checkLayers(t, fork, map[string]string{"below": "snapshot\n", "above": "fork\n"})
	}
}

// checkLayers holds that the layers have files, as a client without privileges sees them.
func checkLayers(t *testing.T, sb *Sandbox, want map[string]string) {
	t.Helper()
	trees, err := layersOf(t, sb, true)
	if err != nil {
		t.Fatal(err)
	}
	defer closeTrees(trees)
	for name, text := range want {
		if got, uid := contentOf(t, trees[0], name); got != text || uid != trees[0].User.UID {
			t.Errorf("%s is %q of user %d in %+v", name, got, uid, trees[0])
		}
	}
}

// The process that switched the layers was killed, and PID 1 too.
func TestSandboxStoppedDuringASwitchHasItsLayers(t *testing.T) {
	if reason := layersOfAnywhere(t); reason != "" {
		t.Skip(reason)
	}
	for _, done := range []bool{false, true} {
		l := newTestLauncher(t)
		dir := overlaid(t)
		sb := createUp(t, l, "box", spec.Config{Storage: spec.StorageDisk, Overlays: []string{dir}})
		sh(t, sb, "echo written > "+dir+"/new")
		r := recordOf(t, l, "box")
		r.Switch = &record.Switch{Layers: map[string]int{dir: 7}, Done: done, Snapshot: "snap", Draft: ".none"}
		if done {
			r.Trees[0].Layers = append([]int{7}, r.Trees[0].Layers...)
		}
		if err := r.Write(l.Dir("box")); err != nil {
			t.Fatal(err)
		}
		killInit(t, sb)
		checkLayers(t, sb, map[string]string{"new": "written\n"})
		kept := upAgain(t, l, "box")
		if !strings.Contains(strings.Join(kept.session.Current().Notes, "\n"), "kept as snapshot box-stopped-") {
			t.Errorf("notes %q", kept.session.Current().Notes)
		}
	}
}

// A transaction was killed while it joined, and PID 1 too.
func TestSandboxStoppedDuringAJoinIsPartial(t *testing.T) {
	l := newTestLauncher(t)
	dir := overlaid(t)
	sb := createUp(t, l, "box", spec.Config{Storage: spec.StorageDisk, Overlays: []string{dir}})
	sh(t, sb, "echo written > "+dir+"/new")
	held, err := record.OpenStore(sb.session.Init())
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := os.MkdirAll(overlay.StorePath(held, "tx/0"), 0o700); err != nil {
		t.Fatal(err)
	}
	tx, err := os.Open(overlay.StorePath(held, "tx/0"))
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Close()
	j := overlay.Journal{State: overlay.TxJoins, Places: []record.Place{{Path: dir}}}
	if err := j.Write(tx); err != nil {
		t.Fatal(err)
	}
	killInit(t, sb)
	trees, err := layersOf(t, sb, false)
	if err != nil {
		t.Fatal(err)
	}
	defer closeTrees(trees)
	if !trees[0].Partial {
		t.Errorf("%+v", trees[0])
	}
	if notes := upAgain(t, l, "box").session.Current().Notes; !strings.Contains(strings.Join(notes, "\n"), "joined them only in part") {
		t.Errorf("notes %q", notes)
	}
}

// keptBy is the snapshot that the notes of a sandbox name.
func keptBy(t *testing.T, sb *Sandbox) string {
	t.Helper()
	notes := strings.Join(sb.session.Current().Notes, "\n")
	_, name, found := strings.Cut(notes, "kept as snapshot ")
	name, _, _ = strings.Cut(name, " ")
	if !found || !record.IsName(name) || len(name) > record.MaxName {
		t.Fatalf("no snapshot in the notes %q", notes)
	}
	return name
}

func TestUpKeepsTheFilesOfAStoppedSandbox(t *testing.T) {
	if reason := layersOfAnywhere(t); reason != "" {
		t.Skip(reason)
	}
	for _, id := range []string{"box", strings.Repeat("b", record.MaxName)} {
		for _, line := range []string{"echo x > %s/new", "rm %s/gone", "echo x > /workspace/f", "echo x > ~/f", ""} {
			l := newTestLauncher(t)
			dir := overlaid(t)
			c := spec.Config{Storage: spec.StorageDisk, Overlays: []string{dir}}
			sb := createUp(t, l, id, c)
			if line != "" {
				sh(t, sb, strings.ReplaceAll(line, "%s", dir))
			}
			want := show(t, sb, dir, "/workspace", "/home/sandbox")
			killInit(t, sb)
			again := upAgain(t, l, id)
			if line == "" {
				if names, err := l.Snapshots(t.Context(), 0); err != nil || len(names) > 0 || len(again.session.Current().Notes) > 0 {
					t.Errorf("of an empty sandbox: snapshots %q, %v, notes %q", names, err, again.session.Current().Notes)
				}
				continue
			}
			name := keptBy(t, again)
			if got := show(t, forkOf(t, l, name, c), dir, "/workspace", "/home/sandbox"); got != want {
				t.Errorf("after %q a fork shows\n%s\nwhere there was\n%s", line, got, want)
			}
			if err := l.RemoveSnapshot(t.Context(), name, 0); err != nil {
				t.Error(err)
			}
		}
	}
}

// A fork keeps the layers of a snapshot that was removed.
func TestUpKeepsWhatAForkBeganWith(t *testing.T) {
	if reason := layersOfAnywhere(t); reason != "" {
		t.Skip(reason)
	}
	l := newTestLauncher(t)
	source := createUp(t, l, "source", spec.Config{Storage: spec.StorageDisk})
	sh(t, source, "echo snapshot > f")
	if err := source.Snapshot(t.Context(), "snap"); err != nil {
		t.Fatal(err)
	}
	for _, removed := range []bool{false, true} {
		sb, err := createFork(t, l, protocol.Create{Name: "fork", From: "snap", Config: spec.Config{Storage: spec.StorageDisk}}, Sources{})
		if err != nil {
			t.Fatal(err)
		}
		if removed {
			if err := l.RemoveSnapshot(t.Context(), "snap", 0); err != nil {
				t.Fatal(err)
			}
		}
		killInit(t, sb)
		again := upAgain(t, l, "fork")
		if notes := again.session.Current().Notes; removed != (len(notes) > 0) {
			t.Errorf("snapshot removed %v: notes %q", removed, notes)
		}
		if removed {
			if _, out := sh(t, forkOf(t, l, keptBy(t, again), spec.Config{Storage: spec.StorageDisk}), "cat f"); out.stdout != "snapshot\n" {
				t.Errorf("%+v", out)
			}
		}
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestUpRefusesWhereNoMoreCanBeKept(t *testing.T) {
	l := newTestLauncher(t)
	l.maxSnapshots = 1
	const uid = 4242
	create := func() (*Sandbox, error) {
		return l.Create(t.Context(), protocol.Create{Name: "box", Reuse: true, Config: spec.Config{Storage: spec.StorageDisk}}, Sources{UID: uid, GIDs: []uint32{uid}})
	}
	for i := range 2 {
		sb, err := create()
		if err != nil {
			t.Fatal(err)
		}
		sh(t, sb, fmt.Sprintf("echo %d > f", i))
		killInit(t, sb)
	}
	if _, err := create(); !errors.Is(err, fault.ErrUnavailable) || !strings.Contains(err.Error(), "throw them away with down") {
		t.Errorf("got %v", err)
	}
	if _, some := workIn(t, l, "box"); !some {
		t.Error("the work is gone")
	}
	names, err := l.Snapshots(t.Context(), uid)
	if err != nil || len(names) != 1 {
		t.Fatal(names, err)
	}
	if err := errors.Join(l.RemoveSnapshot(t.Context(), names[0], uid), l.Remove(t.Context(), "box")); err != nil {
		t.Fatal(err)
	}
	checkNoImage(t, l)
}

func workIn(t *testing.T, l *Launcher, id string) (record.Record, bool) {
	t.Helper()
	w, err := workOf(l.Roots, recordOf(t, l, id))
	if err != nil {
		t.Fatal(err)
	}
	return w.record, w.some
}

// Killed after the snapshot was made, "up" keeps the files once.
func TestUpKeepsTheFilesOnce(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "box", spec.Config{Storage: spec.StorageDisk})
	sh(t, sb, "echo x > f")
	killInit(t, sb)
	state, err := statedir.Await(context.Background(), l.Sandboxes(), "box")
	if err != nil {
		t.Fatal(err)
	}
	note, err := l.keepFiles(t.Context(), "box", state)
	state.Release()
	if err != nil || note == "" {
		t.Fatal(note, err)
	}
	again := upAgain(t, l, "box")
	if names, err := l.Snapshots(t.Context(), 0); err != nil || len(names) != 1 || !slices.Equal(again.session.Current().Notes, []string{note}) {
		t.Errorf("snapshots %q, %v, notes %q", names, err, again.session.Current().Notes)
	}
	for i, name := range map[int]string{1: nameForStopped(l.Roots, "box", time.Now()), 2: nameForStopped(l.Roots, strings.Repeat("x", record.MaxName), time.Now())} {
		if !record.IsName(name) {
			t.Errorf("%d: %q", i, name)
		}
	}
}

func TestPruneKeepsUnappliedWork(t *testing.T) {
	l := newTestLauncher(t)
	for _, id := range []string{"empty", "leaving", "work"} {
		sb := createUp(t, l, id, spec.Config{Storage: spec.StorageDisk})
		if id != "empty" {
			sh(t, sb, "echo x > f")
		}
		killInit(t, sb)
	}
	statedir.NoteRemoval(l.Dir("leaving")) // by a "down" that was killed then
	pruned, err := l.Prune(t.Context())
	if err != nil || !slices.Equal(pruned, []string{"empty", "leaving"}) {
		t.Errorf("pruned %q, %v", pruned, err)
	}
	if kept, err := l.Unapplied(); err != nil || !slices.Equal(kept, []string{"work"}) {
		t.Errorf("kept %q, %v", kept, err)
	}
	if err := l.Remove(t.Context(), "work"); err != nil {
		t.Fatal(err)
	}
	checkNoImage(t, l)
	checkNothingLeft(t, l)
}

// A sandbox whose record is of another release, or cannot be read at the moment, may be up.
func TestPruneAndUpLeaveASandboxWithAnUnknownRecord(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "box", spec.Config{Storage: spec.StorageDisk})
	sh(t, sb, "echo work > f")
	file := filepath.Join(l.Dir("box"), record.FileName)
	good, err := record.Read(l.Dir("box"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, fmt.Appendf(nil, `{"version":%d,"init":"another"}`, record.FormatVersion+1), 0o600); err != nil {
		t.Fatal(err)
	}
	draft := filepath.Join(l.Data, record.SnapshotsName, "."+overlay.DraftName(deadProcess(t))) // of the sandbox's half-done switch
	if err := os.MkdirAll(draft, 0o700); err != nil {
		t.Fatal(err)
	}
	if pruned, err := l.Prune(t.Context()); err == nil || len(pruned) > 0 || !statedir.Exists(draft) {
		t.Errorf("pruned %q, and the draft is there: %t, %v", pruned, statedir.Exists(draft), err)
	}
	if kept, err := l.Unapplied(); err != nil || len(kept) > 0 {
		t.Errorf("kept %q, %v", kept, err)
	}
	_, err = l.Create(t.Context(), protocol.Create{Name: "box", Reuse: true, Config: spec.Config{Storage: spec.StorageDisk}}, Sources{})
	if err == nil || !strings.Contains(err.Error(), record.FileName) {
		t.Errorf("up: %v", err)
	}
	if err := errors.Join(os.Remove(file), good.Write(l.Dir("box"))); err != nil {
		t.Fatal(err)
	}
	if r, _ := sh(t, sb, "test -e f"); r.ExitCode != 0 {
		t.Errorf("its file is gone: %+v", r)
	}
	if _, err := l.Prune(t.Context()); err != nil || statedir.Exists(draft) {
		t.Errorf("the draft is there, %v", err)
	}
	if err := l.Remove(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
	checkNothingLeft(t, l)
}

// The layers are opened while the sandbox is removed: they are there, or the sandbox is
// not.
func TestLayersDuringARemovalAreThereOrNot(t *testing.T) {
	testhost.Concurrent(t)
	l := newTestLauncher(t)
	dir := overlaid(t)
	for round := range 20 {
		sb := createUp(t, l, "box", spec.Config{Storage: spec.StorageDisk, Overlays: []string{dir}})
		sh(t, sb, "echo new > "+dir+"/new")
		if round%2 == 1 {
			killInit(t, sb)
		}
		removed := make(chan error)
		go func() {
			time.Sleep(rand.N(3 * time.Millisecond))
			removed <- l.Remove(t.Context(), "box")
		}()
		for {
			trees, err := layersOf(t, sb, round%4 < 2)
			closeTrees(trees)
			if err == nil {
				continue
			}
			if !errors.Is(err, fault.ErrNotFound) {
				t.Errorf("round %d: %v", round, err)
			}
			break
		}
		if err := <-removed; err != nil {
			t.Fatal(err)
		}
	}
	checkNoImage(t, l)
}

// A "down" that was killed after it gave the files up is no loss of work: "up" keeps
// nothing, and the other commands say to run "down" again.
func TestRemovalThatWasKilledEarlyIsSaidToHaveBegun(t *testing.T) {
	l := newTestLauncher(t)
	dir := overlaid(t)
	sb := createUp(t, l, "box", spec.Config{Storage: spec.StorageDisk, Overlays: []string{dir}})
	if _, out := sh(t, sb, "echo more >"+dir+"/new"); out.stderr != "" {
		t.Fatal(out.stderr)
	}
	statedir.NoteRemoval(l.Dir("box"))
	r := recordOf(t, l, "box")
	begun, err := l.parts.Open("box", l.Dir("box"), &r)
	if err != nil {
		t.Fatal(err)
	}
	_ = begun.Group.Close() // closes descriptors only
	if _, err := layersOf(t, sb, false); err == nil || !strings.Contains(err.Error(), "run down again") {
		t.Errorf("layers of files that were given up: %v", err)
	}
	again, err := l.Create(t.Context(), protocol.Create{Name: "box", Reuse: true, Config: spec.Config{Storage: spec.StorageDisk, Overlays: []string{dir}}}, Sources{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { again.Close() })
	if i, err := again.Info(); err != nil || strings.Contains(strings.Join(i.Notes, " "), "snapshot") {
		t.Errorf("%+v, %v", i.Notes, err)
	}
}
