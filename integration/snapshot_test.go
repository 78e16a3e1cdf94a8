package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/failpoint"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

func TestSnapshotForkAndDiscard(t *testing.T) {
	need(t, layersOfAnywhere(t))
	s := newSandboxes(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("host\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s.up("box", "--overlay", dir, "--cwd", dir)
	s.sh("box", "echo old > /workspace/w; echo old > file")
	says := func(want string, args ...string) string {
		t.Helper()
		got := run(t, s.command(args...))
		if got.code != 0 || got.stderr != want {
			t.Errorf("%q: %+v", args, got)
		}
		return got.stdout
	}
	ok := func(args ...string) string { t.Helper(); return says("", args...) }
	snap := "snap-" + filepath.Base(s.root)
	says("kept the files of box as the snapshot "+snap+"; to begin with them: "+s.program()+" up --from "+snap+" NAME\n", "snapshot", "box", snap)
	defer run(t, s.command("snapshot", "--remove", snap))
	if list := ok("snapshot", "--list"); list != snap+"\n" {
		t.Errorf("there are %q", list)
	}
	s.sh("box", "echo new > /workspace/w; echo new > file")
	s.up("fork", "--from", snap)
	if got := s.sh("fork", "cat /workspace/w file"); got != "old\nold\n" {
		t.Errorf("a fork has %q", got)
	}
	for name, note := range map[string]string{
		"fork": "fork is up already\n",
		"box":  "box is up already; --from had no effect (to change the sandbox, first run: " + s.program() + " down box)\n",
	} {
		if got := s.oci("up", "--from", snap, name); got != (result{0, name + "\n", note}) {
			t.Errorf("up --from of what is up: %+v, want %q", got, note)
		}
	}
	if got := ok("changes", "fork"); !strings.Contains(got, dir+"/file") {
		t.Errorf("the changes of a fork are %q", got)
	}
	says("discarded the writes to the overlays of box\n", "discard", "box")
	if got := s.sh("box", "cat /workspace/w file"); got != "new\nhost\n" {
		t.Errorf("after a discard there is %q", got)
	}
	says("removed the snapshot "+snap+"\n", "snapshot", "--remove", snap)
	if got := s.sh("fork", "cat /workspace/w file"); got != "old\nold\n" {
		t.Errorf("a fork of what was removed has %q", got)
	}
	for _, args := range [][]string{{"up", "--from", snap, "none"}, {"snapshot", "box"}, {"snapshot", "box", "a/b"}, {"snapshot", "nobox", snap},
		{"snapshot", "--remove", snap}, {"discard"}, {"discard", "nobox"}, {"snapshot", "--list", "box"}} {
		if got := run(t, s.command(args...)); got.code == 0 || got.stderr == "" {
			t.Errorf("%q: %+v", args, got)
		}
	}
	if left := s.sh("box", "echo still > file; cat file"); left != "still\n" {
		t.Errorf("the sandbox has %q", left)
	}
}

// kept lists what there is of sandboxes' files on disk, once the trash is emptied:
// what removes a sandbox may leave that to others.
func kept(t *testing.T, s *sandboxes) (all []string) {
	t.Helper()
	s.wants("prune")
	for _, pattern := range []string{"snapshots/*", "stores/*.img", "trash/*"} {
		found, err := filepath.Glob(filepath.Join(dataDir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	return all
}

// Killed at any moment, a snapshot is there or not, the sandbox shows the same files
// and goes on; a discard has thrown away all or nothing.
func TestSnapshotAndDiscardKilledAtFailpoints(t *testing.T) {
	need(t, layersOfAnywhere(t))
	for name, b := range map[string]struct{ args, may []string }{
		"snapshot": {[]string{"snapshot", "c", "snap"}, []string{"old\nold\nold\nold\n"}},
		"discard":  {[]string{"discard", "c"}, []string{"old\nold\nold\nold\n", "old\n"}},
	} {
		t.Run(name, func(t *testing.T) { newSwitchKills(t).strike(b.args, b.may) })
	}
}

// switchKills is the sandbox c with an overlay, one that is its workspace, too, and a
// home of its own.
type switchKills struct {
	*sandboxes
	t         *testing.T
	dir, both string
	before    []string
}

func newSwitchKills(t *testing.T) *switchKills {
	s := newSandboxes(t)
	k := &switchKills{s, t, t.TempDir(), t.TempDir(), kept(t, s)}
	if err := os.Mkdir(filepath.Join(k.dir, ".ssh"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(k.dir, ".ssh", "key"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	k.up("c", k.flags()...)
	return k
}

func (k *switchKills) flags() []string {
	return []string{"--overlay", k.dir, "--overlay", k.both, "--workspace", k.both}
}

func (k *switchKills) fill(text string) {
	k.t.Helper()
	k.sh("c", strings.NewReplacer("TEXT", text, "DIR", k.dir).Replace("echo TEXT > ~/file; mkdir -p DIR/d; echo TEXT > DIR/d/file; echo TEXT > file"))
}

// look shows the files of a sandbox, and what it must not.
func (k *switchKills) look(name string) string {
	k.t.Helper()
	return k.sh(name, strings.NewReplacer("DIR", k.dir, "BOTH", k.both).Replace("cat ~/file; cat DIR/d/file file BOTH/file 2>/dev/null || true; ls DIR/.ssh"))
}

// layers counts those that there are in the store of c, and fails where a transaction
// or the beginnings of one are left.
func (k *switchKills) layers() int {
	k.t.Helper()
	store := fmt.Sprintf("/proc/%d/fd/7", k.pid("c"))
	if left, err := filepath.Glob(store + "/tx/*"); err != nil || len(left) > 0 {
		k.t.Fatalf("in the store there are %q, %v", left, err)
	}
	layers, err := filepath.Glob(store + "/layer/*")
	if err != nil || len(layers) == 0 {
		k.t.Fatalf("in the store there are %d layers, %v", len(layers), err)
	}
	return len(layers)
}

func (k *switchKills) strike(args, may []string) {
	t := k.t
	strike := func(n int) failpoint.Trace {
		trace, err := failpoint.Run(k.command(args...), n, patience)
		if err != nil {
			t.Fatal(err)
		}
		return trace
	}
	k.fill("old")
	points := len(strike(0).Points)
	kills, snapshots := 0, 0
	for i, n := range someFailpoints(points, 20) {
		run(t, k.command("snapshot", "--remove", "snap"))
		k.fill("old")
		layers := k.layers()
		trace := strike(n)
		if trace.Killed {
			kills++
		}
		at := fmt.Sprintf("killed at %d, %v", n, trace.Points[len(trace.Points)-1])
		if i%5 == 4 { // nobody opens it again; and not more layers than there can be
			k.ends(at)
			k.up("c", k.flags()...)
			continue
		}
		if i%2 == 0 {
			if got := run(t, k.command("prune")); got.code != 0 || got.stderr != "" {
				t.Fatalf("%s: prune: %+v", at, got)
			}
		}
		if i%3 == 0 {
			k.strikeAgain(t)
		}
		// One that stands still is completed or restored by whoever opens it.
		if now := k.look("c"); !slices.Contains(may, now) {
			t.Fatalf("%s: there is %q", at, now)
		}
		k.fill("new")
		if now := k.look("c"); now != "new\nnew\nnew\nnew\n" {
			t.Fatalf("%s: after a write there is %q", at, now)
		}
		if state := run(t, k.command("state", "c")).stdout; !strings.Contains(state, "running") {
			t.Fatalf("%s: %s", at, state)
		}
		if run(t, k.command("snapshot", "--list")).stdout == "snap\n" {
			snapshots++
			layers += 3
			k.up("fork", "--from", "snap", "--workspace", k.both)
			if got := k.look("fork"); got != "old\nold\nold\nold\n" {
				t.Fatalf("%s: a fork has %q", at, got)
			}
			k.downIfUp("fork")
		}
		if now := k.layers(); now != layers {
			t.Fatalf("%s: there are %d layers, want %d", at, now, layers)
		}
	}
	t.Logf("%d failpoints, %d kills, %d times there was a snapshot", points, kills, snapshots)
	if kills == 0 {
		t.Error("never killed")
	}
	k.ends("at the end")
}

// ends removes c and the snapshot, and holds that nothing is left of them.
func (k *switchKills) ends(at string) {
	k.t.Helper()
	k.downIfUp("c")
	run(k.t, k.command("snapshot", "--remove", "snap"))
	if left := kept(k.t, k.sandboxes); !slices.Equal(left, k.before) {
		k.t.Fatalf("%s: on disk there are %q, before it were %q", at, left, k.before)
	}
}

// A fork that is killed while it is made is up with the snapshot's files, or the next
// one is.
func TestForkKilledAtFailpoints(t *testing.T) {
	need(t, layersOfAnywhere(t))
	k := newSwitchKills(t)
	k.fill("old")
	at := "before"
	works := func(args ...string) {
		t.Helper()
		if got := run(t, k.command(args...)); got.code != 0 {
			t.Fatalf("%s: %q: %+v", at, args, got)
		}
	}
	works("snapshot", "c", "snap")
	works("down", "c")
	defer run(t, k.command("snapshot", "--remove", "snap"))
	fork := []string{"up", "--from", "snap", "--workspace", k.both, "fork"}
	strike := func(n int) failpoint.Trace {
		trace, err := failpoint.Run(k.command(fork...), n, patience)
		if err != nil {
			t.Fatal(err)
		}
		return trace
	}
	points := len(strike(0).Points)
	works("down", "fork")
	snapshotOnly := kept(t, k.sandboxes)
	kills := 0
	for i, n := range someFailpoints(points, 40) {
		trace := strike(n)
		if trace.Killed {
			kills++
		}
		at = fmt.Sprintf("killed at %d, %v", n, trace.Points[len(trace.Points)-1])
		switch i % 3 {
		case 0:
			works("prune")
		case 1:
			if got := run(t, k.command("down", "fork")); got.code != 0 && !strings.Contains(got.stderr, "does not exist") {
				t.Fatalf("%s: down: %+v", at, got)
			}
		}
		works(fork...)
		if got := k.look("fork"); got != "old\nold\nold\nold\n" {
			t.Fatalf("%s: the fork has %q", at, got)
		}
		works("down", "fork")
		if left := kept(t, k.sandboxes); !slices.Equal(left, snapshotOnly) {
			t.Fatalf("%s: on disk there are %q, without forks there were %q", at, left, snapshotOnly)
		}
	}
	t.Logf("%d failpoints, %d kills", points, kills)
	if kills == 0 {
		t.Error("never killed")
	}
	works("snapshot", "--remove", "snap")
	if left := kept(t, k.sandboxes); !slices.Equal(left, k.before) {
		t.Errorf("on disk there are %q, before it were %q", left, k.before)
	}
}

// A launcher that is killed while it gives a sandbox another workspace: the sandbox has
// the one or the other, and all who come know which.
func TestSetWorkspaceKilledAtFailpoints(t *testing.T) {
	need(t, layersOfAnywhere(t))
	s := newSandboxes(t)
	dirs := [2]string{t.TempDir(), t.TempDir()}
	for _, dir := range dirs {
		if err := os.WriteFile(filepath.Join(dir, "name"), []byte(dir), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s.up("c")
	shown := func() string { return s.sh("c", "cat name 2>/dev/null || true") }
	// consistent: what a transaction writes goes to what the record says.
	consistent := func(t *testing.T, at string) {
		t.Helper()
		if got := s.exec("--transaction", "c", "sh", "-c", "echo "+at+" > made"); got.code != 0 {
			t.Fatalf("%s: transaction: %+v", at, got)
		}
		if got := s.sh("c", "cat made"); got != at+"\n" {
			t.Fatalf("%s: the transaction has made %q", at, got)
		}
		if dir := shown(); dir != "" && strings.TrimSpace(content(t, filepath.Join(dir, "made"))) != at {
			t.Fatalf("%s: it has not made it in %s", at, dir)
		}
	}
	for name, before := range map[string]string{"the first": "", "another": dirs[0]} {
		t.Run(name, func(t *testing.T) {
			back := func() {
				s.downIfUp("c")
				s.up("c")
				if before != "" {
					s.setWorkspace(t, before, 0)
				}
			}
			back()
			points := len(s.setWorkspace(t, dirs[1], 0).Points)
			kills, done := 0, 0
			for _, n := range someFailpoints(points, 30) {
				back()
				trace := s.setWorkspace(t, dirs[1], n)
				if trace.Killed {
					kills++
				}
				now := shown()
				if now != before && now != dirs[1] {
					t.Fatalf("killed at %d, %v: there is %q", n, trace.Points[len(trace.Points)-1], now)
				}
				if now == dirs[1] {
					done++
				}
				consistent(t, fmt.Sprint("killed-at-", n))
				s.setWorkspace(t, dirs[1], 0)
				if now := shown(); now != dirs[1] {
					t.Fatalf("killed at %d: then there is %q", n, now)
				}
				consistent(t, fmt.Sprint("again-", n))
			}
			t.Logf("%d failpoints, %d kills, %d times it had the new one", points, kills, done)
			if kills == 0 {
				t.Error("never killed")
			}
		})
	}
}

// setWorkspace gives the sandbox c a workspace by a launcher that is killed at its n-th
// failpoint, if n is not 0.
func (s *sandboxes) setWorkspace(t *testing.T, dir string, n int) failpoint.Trace {
	t.Helper()
	return s.killLauncher(t, n, nil, func(m *sandbox.Manager) error {
		box, err := m.Get(t.Context(), "c")
		if err != nil {
			return err
		}
		return box.SetWorkspace(t.Context(), dir)
	})
}

// The workspace may be one of the overlays; and what a snapshot has is there after
// the sandbox has thrown it away.
func TestSnapshotOutlivesDiscard(t *testing.T) {
	need(t, layersOfAnywhere(t))
	s, dir := newSandboxes(t), t.TempDir()
	s.up("box", "--overlay", dir, "--workspace", dir)
	s.sh("box", "echo kept > file")
	snap := "kept-" + filepath.Base(s.root)
	if got := s.oci("snapshot", "box", snap); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	defer s.oci("snapshot", "--remove", snap)
	s.sh("box", "echo thrown > file; echo away > file2")
	if got := s.oci("discard", "box"); got.code != 0 {
		t.Errorf("%+v", got)
	}
	if got := s.sh("box", "ls -A . "+dir); got != ".:\n\n"+dir+":\n" {
		t.Errorf("after it, there is %q", got)
	}
	s.up("fork", "--from", snap, "--workspace", dir)
	if got := s.sh("fork", "cat file "+dir+"/file; ls -A"); got != "kept\nkept\nfile\n" {
		t.Errorf("the fork has %q", got)
	}
}
