package integration

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/failpoint"
)

// renamer has rename(2), and no fallback to a copy as mv has.
const renamer = `import os, sys
for at in range(1, len(sys.argv), 2):
    os.rename(sys.argv[at], sys.argv[at + 1])
`

// renames renames files in a sandbox, in pairs of an old and a new path in a directory.
func (s *sandboxes) renames(name, dir string, pairs ...string) result {
	s.t.Helper()
	args := []string{name, "python3", "-c", renamer}
	for _, path := range pairs {
		args = append(args, filepath.Join(dir, path))
	}
	return s.exec(args...)
}

// mustRename is renames that must work.
func (s *sandboxes) mustRename(name, dir string, pairs ...string) {
	s.t.Helper()
	if got := s.renames(name, dir, pairs...); got != (result{}) {
		s.t.Fatalf("rename %q: %+v", pairs, got)
	}
}

// kinds are the kinds and paths of the changes of a sandbox, below a directory.
func (s *sandboxes) kinds(name, dir string) (all []string) {
	s.t.Helper()
	for line := range strings.Lines(s.ok("changes", "--json", name).stdout) {
		var c struct{ Path, Kind string }
		decode(s.t, line, &c)
		all = append(all, c.Kind+" "+strings.TrimPrefix(c.Path, dir+"/"))
	}
	return all
}

func storages(t *testing.T, test func(t *testing.T, s *sandboxes, storage string)) {
	for _, storage := range []string{"disk", "memory"} {
		t.Run(storage, func(t *testing.T) { test(t, newSandboxes(t), storage) })
	}
}

// A program that trusts rename(2) can rename a directory of the host. All that reads the changes has
// real files at the new path, and the sandbox goes on after an apply.
func TestADirectoryOfTheHostIsRenamed(t *testing.T) {
	storages(t, func(t *testing.T, s *sandboxes, storage string) {
		home := newHome(t)
		s.up("box", "--storage", storage, "--overlay", home)
		s.mustRename("box", home, "src/deep", "src/d", "src", "lib", "old", "lib/old", "becomes-file", "x", "x", "becomes-file")
		s.sh("box", "cd "+home+"; echo changed > lib/main.go; rm lib/old/a; test $(cat lib/d/file) = deep")
		seen := s.seen("box", home)
		want := []string{"created lib", "created lib/d", "created lib/d/file", "created lib/main.go",
			"created lib/old", "created lib/old/sub", "created lib/old/sub/b", "deleted old", "deleted src"}
		if got := s.kinds("box", home); !slices.Equal(got, want) {
			t.Errorf("changes: %q, want %q", got, want)
		}
		s.copiesAre("box", home, seen)
		s.ok("apply", "--yes", "box")
		if got := differing(seen, snapshotOf(t, home)); len(got) > 0 {
			t.Errorf("the host is not as the sandbox saw it at %q", got)
		}
		if got := s.kinds("box", home); len(got) > 0 {
			t.Errorf("after the apply there are %q", got)
		}
		if got := differing(seen, s.seen("box", home)); len(got) > 0 {
			t.Errorf("after the apply the sandbox sees other files at %q", got)
		}
		s.mustRename("box", home, "lib", "again", "again/d", "d")
		s.sh("box", "cd "+home+"; rm -r again/old; echo new > again/new; mkdir old; echo 1 > old/1")
		seen = s.seen("box", home)
		s.ok("apply", "--yes", "box")
		if got := differing(seen, snapshotOf(t, home)); len(got) > 0 {
			t.Errorf("after a second apply the host is not as the sandbox saw it at %q", got)
		}
	})
}

// copiesAre applies an archive and a patch of a sandbox's changes to copies. Both copies then equal the seen tree.
func (s *sandboxes) copiesAre(name, home string, seen map[string]string) {
	s.t.Helper()
	for _, suffix := range []string{".tar", ".patch"} {
		dir := s.t.TempDir()
		file, tree := filepath.Join(dir, "changes"+suffix), filepath.Join(dir, "tree")
		s.ok("save", name, file)
		unpack := `cp -a "$1" "$2"; cd "$2"; rm -rf src old; tar xpf "$3" --exclude '.wh.*'; chown -R --no-dereference 4242:4242 .`
		if suffix == ".patch" {
			unpack = `cp -a "$1" "$2"; cd "$2"; git apply --whitespace=nowarn "$3"; chown -R --no-dereference 4242:4242 .`
		}
		if out, err := exec.Command("sh", "-euc", unpack, "sh", home, tree, file).CombinedOutput(); err != nil {
			s.t.Fatalf("%v: %s", err, out)
		}
		if got := differing(seen, snapshotOf(s.t, tree)); len(got) > 0 {
			s.t.Errorf("%s makes other files at %q", suffix, got)
		}
	}
}

// The host's changes meanwhile are conflicts: the directory that is to go has changed.
func TestTheHostChangesARenamedDirectory(t *testing.T) {
	for name, change := range map[string]string{"a new file": "echo x > src/of-the-host", "a changed file": "echo x > src/main.go", "a removed file": "rm src/deep/file"} {
		s, home := newSandboxes(t), newHome(t)
		s.up("box", "--overlay", home)
		s.mustRename("box", home, "src", "lib")
		if out, err := exec.Command("sh", "-euc", "cd $0; "+change+"; chown -R 4242:4242 src", home).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		got := run(t, s.command("apply", "--yes", "box"))
		if got.code != 1 || !strings.Contains(got.stderr, home+"/src: ") || exists(filepath.Join(home, "lib")) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// The kernel neither copies nor removes a file of another user. So the rename must be taken back.
func TestARenamedDirectoryHasFilesOfOthers(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	writeFile(t, filepath.Join(home, "old/private"), "canary")
	if err := os.Chmod(filepath.Join(home, "old/private"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.up("box", "--overlay", home)
	s.mustRename("box", home, "old", "former")
	if got := run(t, s.command("changes", "box")); got.code == 0 || !strings.Contains(got.stderr, "private: belongs to another user of the host; rename the directory back") {
		t.Errorf("changes: %+v", got)
	}
	if got := s.exec("box", "grep", "-r", "canary", home); got.code != 2 || got.stdout != "" {
		t.Errorf("shown: %+v", got)
	}
	s.mustRename("box", home, "former", "old")
	if got := s.kinds("box", home); len(got) > 0 {
		t.Errorf("renamed back: %q", got)
	}
}

// An apply removes the host's directory. A process that works there must not lose its files.
func TestApplyWaitsForTheUsersOfARenamedDirectory(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	s.up("box", "--overlay", home)
	s.mustRename("box", home, "src", "lib")
	for what, script := range map[string]string{
		"is in":         "cd " + home + "/lib/deep && echo $$ > /tmp/ready && exec sleep 1000",
		"has":           "exec 9< " + home + "/lib/main.go; echo $$ > /tmp/ready; exec sleep 1000",
		"watches files": `exec python3 -c 'import ctypes, os, time; c = ctypes.CDLL(None); assert c.inotify_add_watch(c.inotify_init(), b"` + home + `/lib/deep", 2) > 0; print(os.getpid(), file=open("/tmp/ready", "w"), flush=True); time.sleep(1000)'`,
	} {
		s.detached("box", script)
		eventually(t, "the process is ready", func() bool { return s.exec("box", "test", "-s", "/tmp/ready").code == 0 })
		got := run(t, s.command("apply", "--yes", "box"))
		if got.code == 0 || !strings.Contains(got.stderr, what) || !exists(filepath.Join(home, "src")) || exists(filepath.Join(home, "lib")) {
			t.Errorf("%s: %+v", what, got)
		}
		if got := s.ok("changes", "box"); !strings.Contains(got.stdout, "lib/deep/file") {
			t.Errorf("changes are read all the same: %+v", got)
		}
		s.sh("box", "pid=$(cat /tmp/ready); rm /tmp/ready; kill $pid; while [ -e /proc/$pid ]; do sleep 0.01; done")
	}
	if layersOfAnywhere(t) == "" {
		other := start(t, s.command("exec", "--transaction", "box", "sh", "-c", "touch /tmp/runs; while [ ! -e /tmp/go ]; do sleep 0.01; done"))
		eventually(t, "the transaction runs", func() bool { return s.exec("box", "test", "-e", "/tmp/runs").code == 0 })
		if got := run(t, s.command("apply", "--yes", "box")); got.code == 0 || !strings.Contains(got.stderr, "a transaction runs") || !exists(filepath.Join(home, "src")) {
			t.Errorf("beside a transaction: %+v", got)
		}
		s.sh("box", "touch /tmp/go")
		if got := other.wait(); got.code != 0 {
			t.Errorf("%+v", got)
		}
	}
	s.ok("apply", "--yes", "box")
	if got := s.sh("box", "ls "+home+"/lib/deep"); got != "file\n" {
		t.Errorf("after the apply there is %q", got)
	}
}

func TestTransactionsRenameDirectoriesOfTheHost(t *testing.T) {
	need(t, layersOfAnywhere(t))
	s, home := newSandboxes(t), newHome(t)
	s.up("box", "--overlay", home)
	before := s.seen("box", home)
	s.mustRename("box", home, "old", "former")
	first := s.seen("box", home)
	if got := s.exec("--transaction", "box", "python3", "-c", renamer, home+"/src", home+"/lib", home+"/former/sub", home+"/sub"); got != (result{}) {
		t.Fatalf("%+v", got)
	}
	want := []string{"created former", "created former/a", "created lib", "created lib/deep", "created lib/deep/file",
		"created lib/main.go", "deleted old", "deleted src", "created sub", "created sub/b"}
	if got := s.kinds("box", home); !slices.Equal(got, want) {
		t.Errorf("joined: %q, want %q", got, want)
	}
	s.ok("undo", "box")
	if got := differing(first, s.seen("box", home)); len(got) > 0 {
		t.Errorf("undone, there are other files at %q", got)
	}
	if got := s.exec("--transaction", "box", "sh", "-c", "mv "+home+"/src "+home+"/lib; exit 3"); got.code != 3 {
		t.Errorf("%+v", got)
	}
	s.ok("discard", "box")
	if got := differing(before, s.seen("box", home)); len(got) > 0 {
		t.Errorf("discarded, there are other files at %q", got)
	}
}

// A writable directory of the host is no layer, but below the layer of a transaction.
func TestTransactionsRenameDirectoriesOfTheWorkspace(t *testing.T) {
	need(t, layersOfAnywhere(t))
	s, home := newSandboxes(t), newHome(t)
	s.up("box", "--workspace", home)
	if got := s.exec("--transaction", "box", "python3", "-c", renamer, "src", "lib", "old/sub", "lib/sub"); got != (result{}) {
		t.Fatalf("%+v", got)
	}
	if got := s.sh("box", "ls lib lib/deep lib/sub old"); got != "lib:\ndeep\nmain.go\nsub\n\nlib/deep:\nfile\n\nlib/sub:\nb\n\nold:\na\n" || exists(filepath.Join(home, "src")) {
		t.Errorf("joined: %q", got)
	}
	s.ok("undo", "box")
	if exists(filepath.Join(home, "lib")) || content(t, filepath.Join(home, "src/deep/file")) != "deep\n" {
		t.Error("not undone")
	}
}

func TestASnapshotHasRenamedDirectories(t *testing.T) {
	need(t, layersOfAnywhere(t))
	s, home := newSandboxes(t), newHome(t)
	s.up("box", "--overlay", home, "--cwd", "/")
	s.mustRename("box", home, "src", "lib")
	s.ok("snapshot", "box", "snap")
	defer s.ok("snapshot", "--remove", "snap")
	s.mustRename("box", home, "lib/deep", "deep")
	want := []string{"created deep", "created deep/file", "created lib", "created lib/main.go", "deleted src"}
	if got := s.kinds("box", home); !slices.Equal(got, want) {
		t.Errorf("above the snapshot: %q, want %q", got, want)
	}
	s.up("fork", "--from", "snap", "--cwd", "/")
	// What comes to the host at the old path is no part of the directory.
	if err := os.Remove(filepath.Join(home, "src/deep/file")); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(home, "src/later"), "x")
	if got := s.sh("fork", "ls "+home+"/lib "+home+"/lib/deep"); got != home+"/lib:\ndeep\nmain.go\n\n"+home+"/lib/deep:\nfile\n" {
		t.Errorf("the fork has %q", got)
	}
	s.mustRename("fork", home, "lib", "library")
	want = []string{"created library", "created library/deep", "created library/deep/file", "created library/main.go", "deleted src"}
	if got := s.kinds("fork", home); !slices.Equal(got, want) {
		t.Errorf("the fork: %q, want %q", got, want)
	}
	s.ok("apply", "--yes", "--overwrite", "fork")
	if got := content(t, filepath.Join(home, "library/deep/file")); got != "deep\n" || exists(filepath.Join(home, "src")) {
		t.Errorf("applied: %q", got)
	}
	// A secret at the old path, which did not hide in the first sandbox, needs a mask now.
	if err := os.MkdirAll(filepath.Join(home, "src/.config/gh"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(home, ".config/gh"), 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(home, ".config/gh/token"), "canary")
	s.up("masked", "--from", "snap", "--cwd", "/")
	if got := s.sh("masked", "cat "+home+"/lib/deep/file; ls -A "+home+"/lib"); got != "deep\ndeep\nmain.go\n" {
		t.Errorf("a fork that allows no renames has %q", got)
	}
	if got := s.exec("masked", "grep", "-r", "canary", home); got.code == 0 {
		t.Errorf("shown: %+v", got)
	}
}

// An apply of a stopped sandbox changes the host's directories in which the kernel found the content of renamed ones. A new
// sandbox with the files of the stopped one shows these files, and no others.
func TestAnAppliedStoppedSandboxWithRenamedDirectoriesGoesOn(t *testing.T) {
	need(t, layersOfAnywhere(t))
	s, dir := newSandboxes(t), t.TempDir()
	for _, name := range []string{"a", "b"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, name, "old-"+name), name)
	}
	s.up("box", "--storage", "disk", "--overlay", dir)
	s.mustRename("box", dir, "a", "c", "b", "a", "c", "b")
	s.ok("changes", "box") // which copies the content
	s.killInit("box")
	s.ok("apply", "--yes", "box")
	name := keptName(s.ok("up", "--overlay", dir, "box").stderr)
	defer s.ok("snapshot", "--remove", name)
	s.up("again", "--from", name)
	if got, want := s.sh("again", "cd "+dir+" && echo */*"), "a/old-b b/old-a\n"; got != want {
		t.Errorf("the new sandbox has %q, want %q", got, want)
	}
	s.ok("apply", "--yes", "again")
	for file, want := range map[string]bool{"a/old-b": true, "b/old-a": true, "a/old-a": false, "b/old-b": false} {
		if _, err := os.Lstat(filepath.Join(dir, file)); (err == nil) != want {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// A sandbox with a snapshot shows no files of the host in renamed directories, also if the snapshot was killed at its end
// and the next command has finished it.
func TestASnapshotThatWasKilledHasRenamedDirectories(t *testing.T) {
	need(t, layersOfAnywhere(t))
	s, dir := newSandboxes(t), t.TempDir()
	kills := 0
	for back := 1; back <= 31; back += 3 { // from the end of the snapshot
		for _, name := range []string{"a", "b"} {
			path := filepath.Join(dir, name)
			if err := errors.Join(os.RemoveAll(path), os.Mkdir(path, 0o755)); err != nil {
				t.Fatal(err)
			}
			writeFile(t, filepath.Join(path, "old-"+name), name)
		}
		box, fork, snap := fmt.Sprint("box", back), fmt.Sprint("fork", back), fmt.Sprint("snap", back)
		s.up(box, "--storage", "disk", "--overlay", dir)
		s.mustRename(box, dir, "a", "c", "b", "a", "c", "b")
		trace, err := failpoint.Run(s.command("snapshot", box, "whole"), 0, patience)
		if err != nil {
			t.Fatal(err)
		}
		s.ok("snapshot", "--remove", "whole")
		s.ok("down", box)
		s.up(box, "--storage", "disk", "--overlay", dir)
		s.mustRename(box, dir, "a", "c", "b", "a", "c", "b")
		at := len(trace.Points) - back
		if trace, err = failpoint.Run(s.command("snapshot", box, snap), at, patience); err != nil {
			t.Fatal(err)
		}
		s.sh(box, "true") // which finishes the snapshot
		if names := s.ok("snapshot", "--list").stdout; trace.Killed && names != "" {
			kills++
			s.up(fork, "--from", snap)
			s.ok("apply", "--yes", fork)
			if got, want := s.sh(fork, "cd "+dir+" && echo */*"), "a/old-b b/old-a\n"; got != want {
				t.Errorf("killed at %d of %d, %v: there is %q, want %q", at, len(trace.Points)+back, trace.Points[len(trace.Points)-1], got, want)
			}
			s.ok("down", fork)
		}
		run(t, s.command("snapshot", "--remove", snap))
		s.ok("down", box)
	}
	t.Logf("%d killed snapshots were finished", kills)
	if kills == 0 {
		t.Error("no killed snapshot was finished")
	}
}

// A stopped sandbox has no mount that shows the content. A new sandbox has.
func TestAStoppedSandboxWithARenamedDirectory(t *testing.T) {
	need(t, layersOfAnywhere(t))
	s, home := newSandboxes(t), newHome(t)
	s.up("box", "--overlay", home)
	s.mustRename("box", home, "src", "lib")
	s.sh("box", "echo x > "+home+"/lib/new")
	s.killInit("box")
	if got := run(t, s.command("changes", "box")); got.code == 0 || !strings.Contains(got.stderr, "renamed") || !strings.Contains(got.stderr, "up") {
		t.Errorf("changes: %+v", got)
	}
	got := run(t, s.command("up", "box"))
	name := keptName(got.stderr)
	if got.code != 0 || name == "" {
		t.Fatalf("%+v", got)
	}
	t.Cleanup(func() { s.downIfUp("box") })
	defer s.ok("snapshot", "--remove", name)
	s.up("again", "--from", name, "--overlay", home)
	want := []string{"created lib", "created lib/deep", "created lib/deep/file", "created lib/main.go", "created lib/new", "deleted src"}
	if got := s.kinds("again", home); !slices.Equal(got, want) {
		t.Errorf("changes: %q, want %q", got, want)
	}
	s.ok("down", "again")
	// Secrets that came since must not show at the new path.
	for _, dir := range []string{".config/gh", "src/x"} {
		if err := os.MkdirAll(filepath.Join(home, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if got := run(t, s.command("up", "--from", name, "--overlay", home, "third")); got.code == 0 || !strings.Contains(got.stderr, "renamed") {
		t.Errorf("a fork with a hidden path deeper down: %+v", got)
		s.downIfUp("third")
	}
}

// A hidden path keeps its place: neither a rename of a directory above it nor one of another
// directory shows the host's file.
func TestRenamesShowNoSecret(t *testing.T) {
	storages(t, func(t *testing.T, s *sandboxes, storage string) {
		home := newHome(t)
		for _, name := range []string{".config/gh/token", ".ssh/key"} {
			if err := os.MkdirAll(filepath.Join(home, filepath.Dir(name)), 0o755); err != nil {
				t.Fatal(err)
			}
			writeFile(t, filepath.Join(home, name), "canary")
		}
		own(t, home, 4242)
		s.up("deep", "--storage", storage, "--overlay", home)
		for _, pair := range [][]string{{".config", "c"}, {".config/gh", "gh"}, {".ssh", "s"}, {"src", "lib"}} {
			if got := s.renames("deep", home, pair...); got.code == 0 {
				t.Errorf("%q was renamed", pair)
			}
		}
		s.exec("deep", "sh", "-c", "cd "+home+"; mv .config c; mv .ssh s; mkdir -p .config/gh")
		if got := s.exec("deep", "grep", "-r", "canary", home); got.code == 0 {
			t.Errorf("shown: %+v", got)
		}
		s.ok("down", "deep")
		if err := os.RemoveAll(filepath.Join(home, ".config")); err != nil {
			t.Fatal(err)
		}
		s.up("flat", "--storage", storage, "--overlay", home)
		s.mustRename("flat", home, "src", "lib")
		if got := s.renames("flat", home, ".ssh", "lib/s"); got.code == 0 {
			t.Error("a hidden directory was renamed")
		}
		if layersOfAnywhere(t) == "" {
			if got := s.exec("--transaction", "flat", "python3", "-c", renamer, home+"/old", home+"/o"); got != (result{}) {
				t.Errorf("%+v", got)
			}
			// The kernel guards no mount point there, and the mask moves with the directory.
			for _, to := range []string{"/s", "/o/s"} {
				got := s.exec("--transaction", "flat", "sh", "-c", "python3 -c '"+renamer+"' $0/.ssh $0"+to+" && ! grep -r canary $0; echo seen", home)
				if got.code == 0 || got.stdout != "seen\n" {
					t.Errorf("a transaction renames a hidden directory: %+v", got)
				}
			}
		}
		if got := s.exec("flat", "grep", "-r", "canary", home); got.code == 0 {
			t.Errorf("shown: %+v", got)
		}
		s.ok("apply", "--yes", "flat")
		if got := content(t, filepath.Join(home, ".ssh/key")); got != "canary" {
			t.Errorf("the host's key is %q", got)
		}
	})
}

// Only the kernel writes the notes of renames. Nobody inside can read or write one, and those in a
// tree of the host, such as the upper directory of another overlay, have no meaning.
func TestNobodyForgesARename(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	for path, attr := range map[string]string{"old": "redirect", "src": "opaque", "src/deep": "redirect"} {
		value := map[string]string{"redirect": "/src", "opaque": "y"}[attr]
		if err := unix.Setxattr(filepath.Join(home, path), "trusted.overlay."+attr, []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	s.up("box", "--overlay", home)
	if got := s.sh("box", "cd "+home+"; ls old src src/deep"); got != "old:\na\nsub\n\nsrc:\ndeep\nmain.go\n\nsrc/deep:\nfile\n" {
		t.Errorf("with attributes in the host's tree: %q", got)
	}
	s.mustRename("box", home, "src", "lib")
	s.sh("box", "mkdir "+home+"/new")
	forge := `import os
for name in os.listxattr("lib"): assert not name.startswith("trusted."), name
for attr in "redirect", "opaque", "sandbox-runtime.whole":
    for path in "lib", "old", "new":
        for act in (lambda: os.setxattr(path, "trusted.overlay." + attr, b"/old"), lambda: os.getxattr(path, "trusted.overlay." + attr), lambda: os.removexattr(path, "trusted.overlay." + attr)):
            try:
                act()
            except OSError:
                continue
            print("done to", path, attr)
`
	if got := s.exec("--user", "0", "--cwd", home, "box", "python3", "-c", forge); got != (result{}) {
		t.Errorf("%+v", got)
	}
	want := []string{"created lib", "created lib/deep", "created lib/deep/file", "created lib/main.go", "created new", "deleted src"}
	if got := s.kinds("box", home); !slices.Equal(got, want) {
		t.Errorf("changes: %q, want %q", got, want)
	}
}

// The kernel has no room for the note of a long path, and refuses the rename. mv copies.
func TestALongPathIsCopied(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	long := strings.Repeat("n", 200)
	if err := os.MkdirAll(filepath.Join(home, long, long, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	own(t, home, 4242)
	s.up("box", "--overlay", home)
	if got := s.renames("box", home, filepath.Join(long, long, "dir"), "dir"); !strings.Contains(got.stderr, "cross-device") {
		t.Errorf("rename: %+v", got)
	}
	s.sh("box", fmt.Sprintf("cd %s; mv %s/%[2]s/dir dir", home, long))
	if got, want := s.kinds("box", home), []string{"created dir", "deleted " + filepath.Join(long, long, "dir")}; !slices.Equal(got, want) {
		t.Errorf("changes: %q, want %q", got, want)
	}
}

// A directory that is too deep to be listed may be the host's, renamed. An apply then takes nothing away from the host.
func TestARenamedDirectoryThatIsTooDeep(t *testing.T) {
	need(t, layersOfAnywhere(t))
	s, home := newSandboxes(t), newHome(t)
	deepen := fmt.Sprintf("cd %s; mkdir d; python3 -c 'import os; os.rename(\"src\", \"d/src\")'; for i in $(seq 150); do mkdir t; mv d t/%s; mv t d; done; echo new > new",
		home, strings.Repeat("n", 250))
	for _, state := range []string{"running", "stopped"} {
		box := "deep-" + state
		s.up(box, "--storage", "disk", "--overlay", home)
		s.sh(box, deepen)
		if state == "stopped" {
			s.killInit(box)
			t.Cleanup(func() { s.downIfUp(box) })
		}
		for _, args := range [][]string{{box, home + "/src"}, {box}} {
			got := run(t, s.command(append([]string{"apply", "--yes"}, args...)...))
			if got.code == 0 || !strings.Contains(got.stderr, "directories deep") || len(got.stderr) > 2000 {
				t.Errorf("%s: apply %q: exit status %d, %d bytes: %.2000s", state, args, got.code, len(got.stderr), got.stderr)
			}
		}
		if data, err := os.ReadFile(filepath.Join(home, "src/main.go")); err != nil || len(data) == 0 {
			t.Fatalf("%s: the host has lost its directory: %v", state, err)
		}
	}
}

// A mount point that the host's directory lacks is there in each later overlay of the directory, too.
func TestMountPointsOutliveASwitch(t *testing.T) {
	storages(t, func(t *testing.T, s *sandboxes, storage string) {
		home, data := newHome(t), t.TempDir()
		if err := os.WriteFile(filepath.Join(data, "file"), []byte("data"), 0o644); err != nil {
			t.Fatal(err)
		}
		look := fmt.Sprintf("test $(cat %s/new/point/file) = data", home)
		options := []string{"--storage", storage, "--overlay", home, "--bind", data + ":" + home + "/new/point"}
		s.up("box", options...)
		s.sh("box", look)
		s.ok("exec", "--transaction", "box", "sh", "-c", look+"; echo 1 > "+home+"/written")
		s.sh("box", look)
		if got, want := s.kinds("box", home), []string{"created written"}; !slices.Equal(got, want) {
			t.Errorf("changes: %q, want %q", got, want)
		}
		if storage == "memory" { // it has no snapshots
			return
		}
		s.ok("snapshot", "box", "kept")
		defer s.ok("snapshot", "--remove", "kept")
		s.sh("box", look)
		s.up("fork", append(options, "--from", "kept")...)
		s.sh("fork", look)
		s.ok("exec", "--transaction", "fork", "sh", "-c", look)
	})
}

func TestARenamedDirectoryNeedsRoom(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	if err := os.WriteFile(filepath.Join(home, "src/big"), make([]byte, 100<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	own(t, home, 4242)
	s.up("box", "--disk", "40MiB", "--overlay", home)
	s.mustRename("box", home, "src", "lib")
	if got := run(t, s.command("changes", "box")); got.code == 0 || !strings.Contains(got.stderr, "no room") {
		t.Errorf("changes: %+v", got)
	}
	s.mustRename("box", home, "lib", "src")
	if got := s.kinds("box", home); len(got) > 0 {
		t.Errorf("renamed back: %q", got)
	}
}

// A paused sandbox stays paused, and one that was not goes on, also if the launcher is killed.
func TestChangesOfARenamedDirectoryKilledAtFailpoints(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	s.up("box", "--overlay", home)
	s.mustRename("box", home, "src", "lib", "old", "lib/old")
	s.ok("pause", "box")
	want := []string{"created lib", "created lib/deep", "created lib/deep/file", "created lib/main.go", "created lib/old",
		"created lib/old/a", "created lib/old/sub", "created lib/old/sub/b", "deleted old", "deleted src"}
	if got := s.kinds("box", home); !slices.Equal(got, want) {
		t.Errorf("paused: %q, want %q", got, want)
	}
	if got := s.exec("box", "true"); got.code == 0 {
		t.Error("the sandbox is not paused any more")
	}
	s.ok("down", "box")
	strike := func(n int) failpoint.Trace {
		s.up("c", "--overlay", home)
		s.mustRename("c", home, "src", "lib", "old", "lib/old")
		trace, err := failpoint.Run(s.command("changes", "c"), n, patience)
		if err != nil {
			t.Fatal(err)
		}
		return trace
	}
	points := len(strike(0).Points)
	for _, n := range someFailpoints(points, 4) {
		s.ok("down", "c")
		if trace := strike(n); !trace.Killed {
			break
		}
		s.sh("c", "true")
		if got := s.kinds("c", home); !slices.Equal(got, want) {
			t.Errorf("killed at %d of %d: %q, want %q", n, points, got, want)
		}
	}
	t.Logf("%d failpoints", points)
}
