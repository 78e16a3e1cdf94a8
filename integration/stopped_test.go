package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/failpoint"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// killInit kills the PID 1 of a sandbox.
func (s *sandboxes) killInit(name string) {
	s.t.Helper()
	kill(s.t, s.pid(name), unix.SIGKILL)
	eventually(s.t, name+" has stopped", func() bool { return s.exec(name, "true").code == 125 })
}

// ok runs a command that must work, and returns its output.
func (s *sandboxes) ok(args ...string) result {
	s.t.Helper()
	got := run(s.t, s.command(args...))
	if got.code != 0 {
		s.t.Fatalf("%q: %+v", args, got)
	}
	return got
}

// writes is the output of all commands that read a sandbox's changes, in a fixed order.
func (s *sandboxes) writes(name string) (all []string) {
	s.t.Helper()
	dir := s.t.TempDir()
	for _, args := range [][]string{{"changes", "--json", name}, {"diff", name}} {
		var lines []string
		for line := range strings.Lines(s.ok(args...).stdout) {
			if !strings.HasPrefix(line, `{"note":`) { // about the host, and not a write
				lines = append(lines, line)
			}
		}
		all = append(all, strings.Join(lines, ""))
	}
	for _, file := range []string{"all.tar", "all.patch"} {
		file = filepath.Join(dir, file)
		s.ok("save", name, file)
		all = append(all, content(s.t, file))
	}
	return all
}

func TestStoppedSandboxIsSavedAndApplied(t *testing.T) {
	for _, fork := range []bool{false, true} {
		s, home := newSandboxes(t), newHome(t)
		s.up("box", "--overlay", home)
		s.exec("box", "sh", "-euc", everyChange, home)
		if fork {
			need(t, layersOfAnywhere(t))
			s.ok("snapshot", "box", "snap")
			s.ok("down", "box")
			s.up("box", "--from", "snap")
			s.ok("snapshot", "--remove", "snap")
			s.sh("box", "echo of the fork > "+home+"/fork")
		}
		seen, before := s.seen("box", home), s.writes("box")
		s.killInit("box")
		if now := s.writes("box"); !slices.Equal(now, before) {
			t.Errorf("stopped, it has written\n%.2000q\nand it was\n%.2000q", now, before)
		}
		s.ok("apply", "--yes", "box")
		if got := differing(seen, snapshotOf(t, home)); len(got) > 0 {
			t.Errorf("the host is not what the sandbox saw at %q", got)
		}
		if got := s.ok("apply", "--yes", "box"); strings.Contains(got.stderr, "conflict") {
			t.Errorf("applied again: %+v", got)
		}
		s.ok("down", "box")
		if left := kept(t, s); len(left) > 0 {
			t.Errorf("on disk there are %q", left)
		}
	}
}

func TestStoppedSandboxInMemoryIsSaidToBeLost(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	s.up("box", "--overlay", home, "--storage", "memory")
	s.killInit("box")
	for _, args := range [][]string{{"changes", "box"}, {"save", "box", filepath.Join(t.TempDir(), "x.tar")}, {"apply", "--yes", "box"}} {
		if got := run(t, s.command(args...)); got.code == 0 || !strings.Contains(got.stderr, "its writes were in memory and are lost") {
			t.Errorf("%q: %+v", args, got)
		}
	}
	if got := s.ok("up", "box"); !strings.Contains(got.stderr, "its writes were in memory and are lost") {
		t.Errorf("up: %+v", got)
	}
}

// keptName is the name of the snapshot that "up" has named.
func keptName(text string) string {
	_, name, _ := strings.Cut(text, "kept as snapshot ")
	name, _, _ = strings.Cut(name, " ")
	return name
}

func TestUpKeepsTheFilesOfAStoppedSandbox(t *testing.T) {
	need(t, layersOfAnywhere(t))
	s, home := newSandboxes(t), newHome(t)
	s.up("box", "--overlay", home)
	s.exec("box", "sh", "-euc", everyChange, home)
	want := s.writes("box")
	s.killInit("box")
	eventually(t, "prune names the stopped sandbox", func() bool { // its parent has to reap PID 1 first
		got := s.ok("prune")
		if got.stdout != "" {
			t.Fatalf("prune: %+v", got)
		}
		return strings.Contains(got.stderr, "kept the stopped sandbox box")
	})
	got := s.ok("up", "--overlay", home, "box")
	name := keptName(got.stderr)
	if !strings.HasPrefix(name, "box-stopped-") {
		t.Fatalf("up: %+v", got)
	}
	defer s.ok("snapshot", "--remove", name)
	if got := s.ok("changes", "box"); got.stdout != "" {
		t.Errorf("the new one has changed %q", got.stdout)
	}
	if got := s.ok("up", "--json", "box"); keptName(got.stdout) != name {
		t.Errorf("up --json: %+v", got)
	}
	s.up("again", "--from", name)
	if now := s.writes("again"); !slices.Equal(now, want) {
		t.Errorf("a sandbox from the snapshot has written\n%.2000q\nand it was\n%.2000q", now, want)
	}
}

// Killed at any moment, "up" in place of a stopped sandbox loses none of the files, and
// the next "up" keeps them once.
func TestUpKilledWhileItKeepsFiles(t *testing.T) {
	testhost.Long(t)
	need(t, layersOfAnywhere(t))
	s, home := newSandboxes(t), newHome(t)
	before := kept(t, s)
	remove := func() (n int) {
		for name := range strings.Lines(s.ok("snapshot", "--list").stdout) {
			s.ok("snapshot", "--remove", strings.TrimSpace(name))
			n++
		}
		return n
	}
	strike := func(n int) failpoint.Trace {
		t.Helper()
		s.up("box", "--overlay", home)
		s.sh("box", "echo written > "+home+"/new")
		s.killInit("box")
		trace, err := failpoint.Run(s.command("up", "--overlay", home, "box"), n, patience)
		if err != nil {
			t.Fatal(err)
		}
		return trace
	}
	points := len(strike(0).Points)
	s.ok("down", "box")
	if n := remove(); n != 1 {
		t.Fatalf("%d snapshots", n)
	}
	kills := 0
	for _, n := range someFailpoints(points, 50) {
		trace := strike(n)
		if trace.Killed {
			kills++
		}
		at := fmt.Sprintf("killed at %d, %v", n, trace.Points[len(trace.Points)-1])
		s.ok("prune")
		s.ok("up", "--overlay", home, "box")
		names := strings.Fields(s.ok("snapshot", "--list").stdout)
		if len(names) != 1 {
			t.Fatalf("%s: snapshots %q", at, names)
		}
		s.up("again", "--from", names[0])
		if got := s.sh("again", "cat "+home+"/new"); got != "written\n" {
			t.Errorf("%s: the files are %q", at, got)
		}
		s.ok("down", "again", "box")
		remove()
		if left := kept(t, s); !slices.Equal(left, before) {
			t.Fatalf("%s: on disk there are %q", at, left)
		}
	}
	if t.Logf("%d failpoints, %d kills", points, kills); kills == 0 {
		t.Error("never killed")
	}
}

// A client without privileges reads and applies the changes of its own stopped sandbox,
// and of no other.
func TestStoppedSandboxIsItsOwnersAlone(t *testing.T) {
	const uid = 4242
	s := newSandboxes(t)
	dir := ownedTree(t, uid)
	for above := filepath.Dir(dir); above != "/tmp" && above != "/"; above = filepath.Dir(above) {
		if err := os.Chmod(above, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	rules := filepath.Join(t.TempDir(), "rules.json")
	text := fmt.Sprintf(`{"peers":[{"user":%d,"workspaces":["%s"]},{"user":%d}]}`, uid, dir, uid+1)
	if err := os.WriteFile(rules, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	l := s.launcher(filepath.Join(t.TempDir(), "s"), "--mode", "0666", "--rules", rules)
	t.Cleanup(func() { s.downIfUp("box") })
	as(t, uid, func(ctx context.Context) error {
		c, err := protocol.Dial(ctx, l.socket)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Create(ctx, protocol.Create{Name: "box", Config: spec.Config{
			Overlays: []string{dir}, Storage: spec.StorageDisk, Limits: spec.Limits{Disk: 64 << 20},
		}})
		if err != nil {
			return err
		}
		output(t, c, "box", "cd "+dir+" && echo mine >new && rm -r dir && mkdir dir && echo x > dir/x")
		return nil
	})
	s.killInit("box")
	as(t, uid+1, func(ctx context.Context) error {
		c, err := protocol.Dial(ctx, l.socket)
		if err != nil {
			return err
		}
		defer c.Close()
		if trees, err := c.Layers(ctx, "box"); err == nil {
			t.Errorf("another's layers: %+v", trees)
		}
		if err := c.Applied(ctx, "box", dir, map[string]layer.Stamp{"x": {CTime: 1}}); err == nil {
			t.Error("another's stamps were taken")
		}
		return nil
	})
	as(t, uid, func(ctx context.Context) error {
		m, err := sandbox.NewManager(sandbox.ManagerConfig{Socket: l.socket})
		if err != nil {
			return err
		}
		defer m.Close()
		box, err := m.Get(ctx, "box")
		if err != nil {
			return err
		}
		c, err := box.Changes(ctx)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Apply(ctx, sandbox.ApplyOptions{})
		return err
	})
	if got := content(t, dir+"/new") + content(t, dir+"/dir/x"); got != "mine\nx\n" {
		t.Errorf("applied: %q", got)
	}
	if err := l.client().Remove(t.Context(), "box"); err != nil {
		t.Error(err)
	}
	interrupt(t, l.testProcess)
}

// The host moves, replaces or deletes the overlaid directory.
func TestChangesOfADirectoryThatTheHostHasReplaced(t *testing.T) {
	for _, stopped := range []bool{false, true} {
		for _, replaced := range []bool{false, true} {
			t.Run(fmt.Sprintf("stopped %v, replaced %v", stopped, replaced), func(t *testing.T) {
				s, home := newSandboxes(t), newHome(t)
				s.up("box", "--overlay", home)
				s.exec("box", "sh", "-euc", everyChange, home)
				want := s.writes("box")
				if err := os.Rename(home, home+"-moved"); err != nil {
					t.Fatal(err)
				}
				if replaced {
					if err := os.Mkdir(home, 0o700); err != nil {
						t.Fatal(err)
					}
				}
				if stopped {
					s.killInit("box")
				}
				if now := s.writes("box"); !slices.Equal(now, want) {
					t.Errorf("after the move it has written\n%.2000q\nand it was\n%.2000q", now, want)
				}
				if got := s.ok("changes", "box"); !strings.Contains(got.stderr, home+": the host has moved the directory") {
					t.Errorf("changes: %+v", got)
				}
				for _, flag := range []string{"--dry-run", "--overwrite"} {
					got := run(t, s.command("apply", "--yes", flag, "box"))
					if got.code != 1 || !strings.Contains(got.stderr, "apply to "+home+": ") || !strings.Contains(got.stderr, "save the changes") {
						t.Errorf("apply %s: %+v", flag, got)
					}
				}
				if there, err := os.ReadDir(home); replaced && (err != nil || len(there) > 0) {
					t.Errorf("it has %v, %v", there, err)
				}
			})
		}
	}
}

func TestChangesOfADirectoryThatTheHostHasDeleted(t *testing.T) {
	for _, again := range []bool{false, true} {
		s, home := newSandboxes(t), newHome(t)
		s.up("box", "--overlay", home)
		s.exec("box", "sh", "-euc", everyChange, home)
		if err := os.RemoveAll(home); err != nil {
			t.Fatal(err)
		}
		if again {
			if err := os.Mkdir(home, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if got := s.ok("changes", "box"); !strings.Contains(got.stderr, home+": the host has deleted the directory") {
			t.Errorf("changes: %+v", got)
		}
		dir := t.TempDir()
		s.ok("save", "box", dir+"/all.tar")
		s.ok("save", "box", dir+"/all.patch")
		script := `cd "$1"; mkdir tar patch; tar -C tar -xf all.tar; cd patch; git apply ../all.patch; cd ..
			for d in tar patch; do (cd $d; for f in README src/new src/hard old/c becomes-directory/in becomes-file "odd
name"; do cat "$f"; done) > $d.all; done; cmp tar.all patch.all; grep -q 2 tar.all; grep -q now tar.all; test -p tar/fifo; test -d tar/private`
		if out, err := exec.Command("sh", "-euc", script, "sh", dir).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		if got := run(t, s.command("apply", "--yes", "box")); got.code != 1 || !strings.Contains(got.stderr, "apply to "+home+": ") {
			t.Errorf("apply: %+v", got)
		}
	}
}

// FILE is whole, or not there, when the sandbox is removed while it is saved.
func TestSaveWhileTheSandboxIsRemoved(t *testing.T) {
	s := newSandboxes(t)
	for round := range 8 {
		home, dir := newHome(t), t.TempDir()
		s.up("box", "--overlay", home)
		s.sh("box", "cd "+home+"; for i in $(seq 200); do echo $i > $i; done; head -c 4m /dev/urandom > large; truncate -s 9m holes")
		file := filepath.Join(dir, []string{"all.tar", "all.patch"}[round%2])
		s.ok("save", "box", file)
		want := content(t, file)
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		saving := start(t, s.command("save", "box", file))
		time.Sleep(rand.N(100 * time.Millisecond))
		s.ok("down", "box")
		got := saving.wait()
		switch there := exists(file); {
		case there != (got.code == 0):
			t.Errorf("there is a file: %v, and save: %+v", there, got)
		case there && content(t, file) != want:
			t.Errorf("the file is not whole: %+v", got)
		case !there && !strings.Contains(got.stderr, "remove"):
			t.Errorf("%+v", got)
		}
		if left, err := filepath.Glob(dir + "/.sandbox-runtime*"); err != nil || len(left) > 0 {
			t.Errorf("left behind: %q, %v", left, err)
		}
	}
}
