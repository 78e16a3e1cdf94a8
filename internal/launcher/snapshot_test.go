package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/overlay"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// createFork makes a sandbox as the server does: a fork that names no overlays has those of
// its snapshot.
func createFork(t *testing.T, l *Launcher, r protocol.Create, from Sources) (*Sandbox, error) {
	t.Helper()
	if r.From != "" {
		b, err := l.Beginning(t.Context(), r.From, from.UID)
		if err != nil {
			return nil, err
		}
		b.Resolve(&r.Config)
	}
	return l.Create(t.Context(), r, from)
}

// forkOf makes a sandbox that begins with a snapshot.
func forkOf(t *testing.T, l *Launcher, snap string, c spec.Config) *Sandbox {
	t.Helper()
	sb, err := createFork(t, l, protocol.Create{Name: newID(), Config: c, From: snap}, Sources{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sb.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return sb
}

func TestForksBeginWithASnapshot(t *testing.T) {
	if reason := layersOfAnywhere(t); reason != "" {
		t.Skip(reason)
	}
	l := newTestLauncher(t)
	dir := ownedDir(t, 4321, "host\n")
	if err := os.Mkdir(filepath.Join(dir, ".ssh"), 0o755); err != nil {
		t.Fatal(err)
	}
	c := spec.Config{Storage: spec.StorageDisk, Overlays: []string{dir}}
	sb := createUp(t, l, "source", c)
	places := []string{"/workspace", "/home/sandbox", dir}
	sh(t, sb, "echo old > file; mkdir d; echo x > d/x; echo home > /home/sandbox/h; rm "+dir+"/given; echo made > "+dir+"/made")
	before := show(t, sb, places...)
	if err := sb.Snapshot(t.Context(), "snap"); err != nil {
		t.Fatal(err)
	}
	if now := show(t, sb, places...); now != before {
		t.Errorf("after a snapshot the sandbox shows\n%s\nwhere there was\n%s", now, before)
	}
	sh(t, sb, "echo new > file; rm -r d; echo later > "+dir+"/later")
	changed := show(t, sb, places...)

	first, second := forkOf(t, l, "snap", c), forkOf(t, l, "snap", c)
	for _, fork := range []*Sandbox{first, second} {
		if now := show(t, fork, places...); now != before {
			t.Errorf("a fork shows\n%s\nwhere the snapshot had\n%s", now, before)
		}
		if _, out := sh(t, fork, "touch "+dir+"/.ssh/x"); !strings.Contains(out.stderr, "Read-only") {
			t.Errorf("what is masked is not in a fork: %q", out)
		}
	}
	sh(t, first, "echo of the fork > file; rm d/x; echo more > "+dir+"/more")
	if now := show(t, second, places...); now != before {
		t.Errorf("what one fork writes shows in another:\n%s", now)
	}
	if now := show(t, sb, places...); now != changed {
		t.Errorf("the sandbox has changed with its fork:\n%s", now)
	}
	// A fork of a fork, of a snapshot that is gone.
	if err := first.Snapshot(t.Context(), "again"); err != nil {
		t.Fatal(err)
	}
	if err := l.RemoveSnapshot(t.Context(), "snap", 0); err != nil {
		t.Fatal(err)
	}
	want := show(t, first, places...)
	if now := show(t, forkOf(t, l, "again", c), places...); now != want {
		t.Errorf("a fork's fork shows\n%s\nwhere there was\n%s", now, want)
	}
	if r, out := transact(t, first, "echo joined > file"); !r.OK() {
		t.Error(r, out)
	}
	if _, err := l.Create(t.Context(), protocol.Create{Config: c, From: "snap"}, Sources{}); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("a fork of a snapshot that is gone: %v", err)
	}
	if names, err := l.Snapshots(t.Context(), 0); err != nil || fmt.Sprint(names) != "[again]" {
		t.Errorf("there are the snapshots %v, %v", names, err)
	}
	if names, err := l.Snapshots(t.Context(), 77); err != nil || len(names) > 0 {
		t.Errorf("another user has %v, %v", names, err)
	}
}

// What a fork has begun with stays, and is as old as it was: what the host has changed
// since is not seen there. What was applied of the layers that go is forgotten.
func TestADiscardMakesAForkNoYounger(t *testing.T) {
	if reason := layersOfAnywhere(t); reason != "" {
		t.Skip(reason)
	}
	l := newTestLauncher(t)
	dir := ownedDir(t, 4321, "host\n")
	c := spec.Config{Storage: spec.StorageDisk, Overlays: []string{dir}}
	sb := createUp(t, l, "source", c)
	sh(t, sb, "echo old > "+dir+"/given")
	tree := func(sb *Sandbox) layer.Overlay {
		t.Helper()
		trees, err := layersOf(t, sb, false)
		if err != nil {
			t.Fatal(err)
		}
		if err := trees[0].Close(); err != nil {
			t.Fatal(err)
		}
		return trees[0]
	}
	if err := sb.Snapshot(t.Context(), "snap"); err != nil {
		t.Fatal(err)
	}
	fork, since := forkOf(t, l, "snap", c), tree(sb).Since
	if err := fork.Applied(t.Context(), dir, protocol.StampList(map[string]layer.Stamp{"x": {CTime: time.Now().UnixNano()}})); err != nil {
		t.Fatal(err)
	}
	for what, sb := range map[string]*Sandbox{"the fork": fork, "its source": sb} {
		if err := sb.Discard(t.Context()); err != nil {
			t.Fatal(err)
		}
		now := tree(sb)
		if younger := now.Since.After(since); younger != (sb != fork) || len(now.Stamps) > 0 {
			t.Errorf("%s: from %v to %v, stamps %v", what, since, now.Since, now.Stamps)
		}
	}
}

func TestForksNeedNoOverlay(t *testing.T) {
	if reason := layersOfAnywhere(t); reason != "" {
		t.Skip(reason)
	}
	l := newTestLauncher(t)
	sb := createUp(t, l, "source", spec.Config{Storage: spec.StorageDisk})
	sh(t, sb, "mkdir many; for i in $(seq 300); do echo $i > many/$i; done; echo home > /home/sandbox/h")
	want := show(t, sb, "/workspace", "/home/sandbox")
	if err := sb.Snapshot(t.Context(), "snap"); err != nil {
		t.Fatal(err)
	}
	for _, storage := range []spec.Storage{spec.StorageMemory, spec.StorageDisk} {
		if got := show(t, forkOf(t, l, "snap", spec.Config{Storage: storage}), "/workspace", "/home/sandbox"); got != want {
			t.Errorf("a fork with its own files in %s shows\n%.200s\nwhere the snapshot had\n%.200s", storage, got, want)
		}
	}
}

// A fork without a layer for files of its snapshot would lack these files. Only a bound workspace takes the place of the
// snapshot's own.
func TestForksHaveALayerForEachPlaceOfTheSnapshot(t *testing.T) {
	if reason := layersOfAnywhere(t); reason != "" {
		t.Skip(reason)
	}
	l := newTestLauncher(t)
	first, second, workspace := ownedDir(t, 4321, "host\n"), ownedDir(t, 4321, "host\n"), ownedDir(t, 4321, "host\n")
	sb := createUp(t, l, "source", spec.Config{Storage: spec.StorageDisk, Overlays: []string{first}})
	sh(t, sb, "echo made > "+first+"/made")
	if err := sb.Snapshot(t.Context(), "snap"); err != nil {
		t.Fatal(err)
	}
	fork := forkOf(t, l, "snap", spec.Config{Storage: spec.StorageDisk, Overlays: []string{first, second}, Workspace: workspace})
	if _, out := sh(t, fork, "cat "+first+"/made"); out.stdout != "made\n" {
		t.Errorf("there is %+v", out)
	}
	for _, dir := range []string{"", workspace} {
		c := spec.Config{Storage: spec.StorageDisk, Overlays: []string{second}, Workspace: dir}
		if _, err := createFork(t, l, protocol.Create{Name: newID(), Config: c, From: "snap"}, Sources{}); !isA[*fault.ConfigError](err) || !strings.Contains(err.Error(), first) {
			t.Errorf("with the workspace %q: %v", dir, err)
		}
	}
}

func TestDiscardShowsTheHostsFilesAgain(t *testing.T) {
	if reason := layersOfAnywhere(t); reason != "" {
		t.Skip(reason)
	}
	for _, storage := range []spec.Storage{spec.StorageMemory, spec.StorageDisk} {
		l := newTestLauncher(t)
		dir := ownedDir(t, 4321, "host\n")
		sb := createUp(t, l, "box", spec.Config{Storage: storage, Overlays: []string{dir}})
		before := show(t, sb, dir)
		for range 3 {
			sh(t, sb, "cd "+dir+"; echo x > given; mkdir -p a/b; echo y > a/b/c; echo mine > /workspace/mine")
			if err := sb.Discard(t.Context()); err != nil {
				t.Fatal(err)
			}
			if now := show(t, sb, dir); now != before {
				t.Errorf("%s: after a discard there is\n%s\nwhere there was\n%s", storage, now, before)
			}
		}
		if _, out := sh(t, sb, "cat /workspace/mine"); out.stdout != "mine\n" {
			t.Errorf("the workspace has lost its file: %q", out)
		}
	}
}

func TestLayersInUseAreNotSwitched(t *testing.T) {
	if reason := layersOfAnywhere(t); reason != "" {
		t.Skip(reason)
	}
	l := newTestLauncher(t)
	dir := ownedDir(t, 4321, "host\n")
	sb := createUp(t, l, "box", spec.Config{Storage: spec.StorageDisk, Overlays: []string{dir}})
	for what, line := range map[string]string{
		"its directory": "cd " + dir + "; touch /tmp/ready; sleep 1000",
		"open":          "cd /; exec 3> " + dir + "/open; touch /tmp/ready; sleep 1000",
		"a directory":   "cd /; exec 3< " + dir + "; touch /tmp/ready; sleep 1000",
	} {
		p, _ := startPiped(t, sb, spec.Command{Args: []string{"sh", "-c", line}})
		eventually(t, "it is there", func() bool {
			r, _ := sh(t, sb, "cd /; rm /tmp/ready 2>/dev/null")
			return r.OK()
		})
		for name, err := range map[string]error{"discard": sb.Discard(t.Context()), "snapshot": sb.Snapshot(t.Context(), "snap")} {
			if !errors.Is(err, fault.ErrBusy) || !strings.Contains(err.Error(), "is in use: process ") {
				t.Errorf("%s while %s: %v", name, what, err)
			}
		}
		if r, out := sh(t, sb, "cd /; touch "+dir+"/after"); !r.OK() {
			t.Errorf("after a refusal: %+v %+v", r, out)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if names, err := l.Snapshots(t.Context(), 0); err != nil || len(names) > 0 {
		t.Errorf("there are the snapshots %v, %v", names, err)
	}
	memory := createUp(t, l, "memory", spec.Config{Storage: spec.StorageMemory})
	if err := memory.Snapshot(t.Context(), "snap"); !errors.Is(err, fault.ErrUnavailable) || !strings.Contains(err.Error(), "--storage disk") {
		t.Errorf("of one in memory: %v", err)
	}
}

func TestSnapshotsHaveABoundOfLayers(t *testing.T) {
	if reason := layersOfAnywhere(t); reason != "" {
		t.Skip(reason)
	}
	l := newTestLauncher(t)
	sb := createUp(t, l, "box", spec.Config{Storage: spec.StorageDisk})
	start := time.Now()
	for i := range overlay.MaxLayers + 1 {
		sh(t, sb, fmt.Sprintf("echo %d > n; echo %[1]d > n-%[1]d", i))
		err := sb.Snapshot(t.Context(), fmt.Sprint("snap-", i))
		if i == overlay.MaxLayers-1 {
			if !isA[*fault.ConfigError](err) || !strings.Contains(err.Error(), "layers") {
				t.Errorf("one more than there can be: %v", err)
			}
			break
		}
		if err != nil {
			t.Fatal(i, err)
		}
	}
	t.Log(time.Since(start))
	if _, out := sh(t, sb, "cat n; ls | wc -l"); out.stdout != fmt.Sprintf("%d\n%d\n", overlay.MaxLayers-1, overlay.MaxLayers+1) {
		t.Errorf("there is %q", out)
	}
}

func TestSnapshotsAtATimeAreBounded(t *testing.T) {
	testhost.Concurrent(t)
	if reason := layersOfAnywhere(t); reason != "" {
		t.Skip(reason)
	}
	l := newTestLauncher(t)
	l.maxSnapshots = 2
	var made atomic.Int32
	var all sync.WaitGroup
	for range 4 {
		sb, err := l.Create(t.Context(), protocol.Create{Name: newID(), Config: spec.Config{Storage: spec.StorageDisk}}, Sources{UID: 4321, GIDs: []uint32{4321}})
		if err != nil {
			t.Fatal(err)
		}
		testhost.CloseAfter(t, sb)
		for range 3 {
			all.Go(func() {
				name := newID()
				if sb.Snapshot(t.Context(), name) == nil {
					made.Add(1)
					t.Cleanup(func() { _ = l.RemoveSnapshot(context.Background(), name, 4321) })
				}
			})
		}
	}
	all.Wait()
	if n := made.Load(); n != 2 {
		t.Errorf("%d snapshots of at most %d", n, l.maxSnapshots)
	}
}

func TestWhatSnapshotsKeepIsBounded(t *testing.T) {
	if reason := layersOfAnywhere(t); reason != "" {
		t.Skip(reason)
	}
	l := newTestLauncher(t)
	l.maxSnapshots = 2
	begin := func(from string) *Sandbox {
		sb, err := createFork(t, l, protocol.Create{Name: newID(), Config: spec.Config{Storage: spec.StorageDisk}, From: from}, Sources{UID: 4321, GIDs: []uint32{4321}})
		if err != nil {
			t.Fatal(err)
		}
		testhost.CloseAfter(t, sb)
		return sb
	}
	snap := func(sb *Sandbox, name string) error {
		t.Helper()
		err := sb.Snapshot(t.Context(), name)
		if err == nil {
			t.Cleanup(func() { _ = l.RemoveSnapshot(context.Background(), name, 4321) }) // some are removed
		}
		return err
	}
	if err := snap(begin(""), "one"); err != nil {
		t.Fatal(err)
	}
	fork := begin("one")
	if err := snap(fork, "two"); err != nil {
		t.Fatal(err)
	}
	if err := l.RemoveSnapshot(t.Context(), "one", 4321); err != nil {
		t.Fatal(err)
	}
	// One is left, with the images of two.
	if err := snap(fork, "three"); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("one more: %v", err)
	}
	if err := l.RemoveSnapshot(t.Context(), "two", 4321); err != nil {
		t.Fatal(err)
	}
	if err := snap(fork, "three"); err != nil { // that it began with is one
		t.Error(err)
	}
}
