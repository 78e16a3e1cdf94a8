package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/apply"
	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/handed"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// usedBlocks is what a file system has in use, in its blocks.
func usedBlocks(t *testing.T, dir *os.File) uint64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks - st.Bfree
}

// heldBox is a sandbox in memory with 20 MiB on its layer, which a client holds.
func heldBox(t *testing.T, l *Launcher) (*Sandbox, layer.Overlay, *os.File) {
	t.Helper()
	dir := overlaid(t)
	sb := createUp(t, l, "", spec.Config{Storage: spec.StorageMemory, Overlays: []string{dir}})
	if r, out := sh(t, sb, "cd "+dir+" && mkdir -p a/b/c && head -c 20m /dev/zero > a/b/c/file && rm -r dir"); !r.OK() {
		t.Fatal(r, out)
	}
	trees, err := layersOf(t, sb, true)
	if err != nil || len(trees) != 1 {
		t.Fatal(trees, err)
	}
	t.Cleanup(func() { closeTrees(trees) })
	layer := trees[0].Layers[0].Dir
	f, err := os.Open(filepath.Join("/proc/self/fd", fmt.Sprint(layer.Fd()), "a/b/c/file"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if usedBlocks(t, layer) < 20<<20/4096 {
		t.Fatal("the files are not in memory")
	}
	return sb, trees[0], f
}

// A removal frees what a sandbox had in memory, also if a client holds its layers and has
// files open there. Until then it counts.
func TestARemovedStoreInMemoryIsFreed(t *testing.T) {
	for name, remove := range map[string]func(*Launcher, *Sandbox) error{
		"removed": func(_ *Launcher, sb *Sandbox) error { return sb.Close() },
		"by another": func(l *Launcher, sb *Sandbox) error {
			other, err := New(Dirs{State: l.State, Data: l.Data})
			if err != nil {
				return err
			}
			defer other.Close()
			return other.Remove(context.Background(), sb.ID())
		},
		"stopped": func(_ *Launcher, sb *Sandbox) error { killInit(t, sb); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			l := newTestLauncher(t)
			sb, tree, f := heldBox(t, l)
			if n := l.Retired(0); n != 0 {
				t.Errorf("%d are held while it is up", n)
			}
			if err := remove(l, sb); err != nil {
				t.Fatal(err)
			}
			if n := l.Retired(0); n != 1 {
				t.Errorf("%d are held", n)
			}
			if n := l.Retired(1); n != 0 {
				t.Errorf("%d are held by another user", n)
			}
			if used := usedBlocks(t, tree.Layers[0].Dir); used > 0 {
				t.Errorf("%d blocks are in use", used)
			}
			tree.Close()
			f.Close()
			testhost.Eventually(t, "nothing is held", func() bool { return l.Retired(0) == 0 })
		})
	}
}

// A process inside can send its open files to a client with a rule. They keep no memory, and
// count, after the removal.
func TestAFileThatAProcessHasSentKeepsNoMemory(t *testing.T) {
	l := newTestLauncher(t)
	sb, err := l.Create(t.Context(), protocol.Create{Config: spec.Config{Storage: spec.StorageMemory}}, Sources{UID: clientID, GIDs: []uint32{clientID}})
	if err != nil {
		t.Fatal(err)
	}
	if r, out := sh(t, sb, "head -c 20m /dev/zero > ~/file"); !r.OK() {
		t.Fatal(r, out)
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/root%s/file", sb.session.Init().Pid, spec.HomePath))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	if used := usedBlocks(t, f); used > 0 {
		t.Errorf("%d blocks are in use", used)
	}
	if n := l.Retired(clientID); n != 1 {
		t.Errorf("%d are held", n)
	}
	f.Close()
	testhost.Eventually(t, "nothing is held", func() bool { return l.Retired(clientID) == 0 })
}

// The launcher frees what a stopped sandbox had in memory though nobody asks for anything.
func TestAStoppedStoreInMemoryIsFreedAfterAWhile(t *testing.T) {
	l := newTestLauncher(t)
	l.handed.Every = 10 * time.Millisecond
	sb, tree, _ := heldBox(t, l)
	killInit(t, sb)
	testhost.Eventually(t, "the store is empty", func() bool { return usedBlocks(t, tree.Layers[0].Dir) == 0 })
	testhost.Eventually(t, "the launcher looks no more", func() bool {
		return l.handed.Idle()
	})
}

// A client may read layers in memory while they are emptied. Verify, which the client asks
// afterwards, refuses what was read.
func TestEmptiedLayersAreNotTrusted(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *Launcher, *Sandbox){
		"stopped": func(t *testing.T, l *Launcher, sb *Sandbox) {
			killInit(t, sb)
			l.Retired(0)
		},
		"removal begun": func(_ *testing.T, l *Launcher, sb *Sandbox) { statedir.NoteRemoval(l.Dir(sb.ID())) },
		"removed":       func(t *testing.T, _ *Launcher, sb *Sandbox) { removeByID(t, sb) },
		"replaced": func(t *testing.T, l *Launcher, sb *Sandbox) {
			removeByID(t, sb)
			createUp(t, l, sb.ID(), spec.Config{Storage: spec.StorageMemory})
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newTestLauncher(t)
			sb, _, _ := heldBox(t, l)
			if err := errors.Join(sb.Verify(t.Context(), true), sb.Verify(t.Context(), false)); err != nil {
				t.Fatal("while it is up:", err)
			}
			end(t, l, sb)
			for _, sync := range []bool{true, false} {
				err := sb.Verify(t.Context(), sync)
				if !errors.Is(err, fault.ErrNotRunning) && !errors.Is(err, fault.ErrNotFound) {
					t.Errorf("sync %v: %v", sync, err)
				}
			}
		})
	}
}

// An apply of layers that are emptied between its plan and its commit changes nothing, not
// even if the plan is short.
func TestEmptiedLayersAreNotApplied(t *testing.T) {
	for _, early := range []bool{false, true} {
		t.Run(fmt.Sprintf("emptied before the plan %v", early), func(t *testing.T) {
			l := newTestLauncher(t)
			sb, tree, _ := heldBox(t, l)
			empty := func() {
				killInit(t, sb)
				l.Retired(0)
			}
			base, err := os.Open(tree.Path)
			if err != nil {
				t.Fatal(err)
			}
			defer base.Close()
			if early {
				empty()
			}
			stack := layer.Stack{Layers: []layer.Layer{{Dir: tree.Layers[0].Dir, Marks: tree.Layers[0].Marks}}, Base: base}
			plan, err := apply.New(&stack, base, apply.Options{
				Overwrite: true, Verify: func(ctx context.Context) error { return sb.Verify(ctx, true) },
			})
			if err != nil {
				t.Fatal(err)
			}
			if !early {
				empty()
			}
			if _, err := plan.Commit(t.Context()); err == nil {
				t.Error("there is no error")
			}
			if text, err := os.ReadFile(tree.Path + "/dir/file"); string(text) != "file" {
				t.Errorf("a file of the host: %q, %v", text, err)
			}
			if _, err := os.Lstat(tree.Path + "/a"); err == nil {
				t.Error("a part was applied")
			}
		})
	}
}

// removeByID removes a sandbox, as another client does.
func removeByID(t *testing.T, sb *Sandbox) {
	t.Helper()
	if err := sb.launcher.Remove(t.Context(), sb.ID()); err != nil {
		t.Fatal(err)
	}
}

// The image of a removed sandbox has no room, and counts as long as a client holds it.
func TestAHeldImageCounts(t *testing.T) {
	l := newTestLauncher(t)
	sb, image, _ := wroteMuch(t, l)
	trees, err := layersOf(t, sb, true)
	if err != nil {
		t.Fatal(err)
	}
	defer closeTrees(trees)
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	checkNoRoom(t, image)
	if n := l.Retired(0); n != 1 {
		t.Errorf("%d are held", n)
	}
	closeTrees(trees)
	testhost.Eventually(t, "nothing is held", func() bool { return l.Retired(0) == 0 })
}

// What was not handed out need not be emptied.
func TestWhatNobodyHoldsIsNotWatched(t *testing.T) {
	l := newTestLauncher(t)
	dir := overlaid(t)
	sb := createUp(t, l, "", spec.Config{Storage: spec.StorageMemory, Overlays: []string{dir}})
	trees, err := layersOf(t, sb, false)
	if err != nil {
		t.Fatal(err)
	}
	closeTrees(trees)
	if handed.Was(l.Dir(sb.ID())) || !l.handed.Idle() {
		t.Error("layers that root has looked at are noted")
	}
}

// A sandbox can make directories in each other that no process can have open at once.
func TestDeepDirectoriesAreErased(t *testing.T) {
	testhost.Long(t)
	top := t.TempDir()
	const depth = 3000
	at, err := os.Open(top)
	if err != nil {
		t.Fatal(err)
	}
	for range depth {
		if err := errors.Join(unix.Mkdirat(int(at.Fd()), "d", 0o700), unix.Mkdirat(int(at.Fd()), "e", 0o700)); err != nil {
			t.Fatal(err)
		}
		fd, err := unix.Openat(int(at.Fd()), "d", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		at.Close()
		at = os.NewFile(uintptr(fd), "d")
	}
	at.Close()
	outside := filepath.Join(t.TempDir(), "file")
	if err := errors.Join(os.WriteFile(outside, []byte("kept"), 0o600), os.Symlink(outside, filepath.Join(top, "link"))); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(top)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := erase.ContentsInUse(t.Context(), dir); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(top); err != nil || len(left) > 0 {
		t.Errorf("%v are left, %v", left, err)
	}
	if text, err := os.ReadFile(outside); string(text) != "kept" {
		t.Errorf("a link was followed: %q, %v", text, err)
	}
}
