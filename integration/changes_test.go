package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// newHome is an ordinary user's directory with something of everything in it.
func newHome(t testing.TB) string {
	t.Helper()
	home := filepath.Join(t.TempDir(), "home")
	script := `mkdir -p "$1"/src/deep "$1"/old/sub && cd "$1" || exit
		printf 'one\ntwo\nthree\n' > README; printf 'package main\n' > src/main.go; echo deep > src/deep/file
		echo a > old/a; echo b > old/sub/b; echo file > becomes-directory; mkdir becomes-file; echo x > becomes-file/x
		ln -s README link; echo run > script; chmod 644 script; echo attr > attr; printf 'a\0b' > binary
		chown -R --no-dereference ` + "4242:4242" + ` .`
	if out, err := exec.Command("sh", "-euc", script, "sh", home).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return home
}

// everyChange makes one change of each kind in a home.
const everyChange = `cd "$0"; printf 'one\n2\nthree\n' > README; echo new > src/new; rm -r old; mkdir old; echo c > old/c
	rm becomes-directory; mkdir becomes-directory; echo in > becomes-directory/in; rm -r becomes-file; echo now > becomes-file
	rm link; ln -s src/main.go link; chmod 755 script; rm src/deep/file; printf 'a\0c' > binary; ln src/new src/hard
	python3 -c 'import os; os.setxattr("attr", "user.note", b"x")'; printf 'x' > 'odd
name'; mkdir -m 700 private; mkfifo fifo`

// snapshotOf is all that is in a tree: types, modes, owners, contents, attributes.
func snapshotOf(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		text, err := json.Marshal(describe(path, &st))
		all[rel] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// describe is what matters of a file, with its size and content where it has one.
func describe(path string, st *unix.Stat_t) map[string]any {
	d := map[string]any{"mode": st.Mode, "uid": st.Uid, "gid": st.Gid}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		content, err := os.ReadFile(path)
		d["content"], d["error"], d["links"] = content, err, st.Nlink
	case unix.S_IFLNK:
		d["target"], _ = os.Readlink(path)
		return d
	}
	names := make([]byte, 1024)
	if n, err := unix.Listxattr(path, names); err == nil {
		for name := range strings.SplitSeq(strings.TrimRight(string(names[:n]), "\x00"), "\x00") {
			if strings.HasPrefix(name, "user.") {
				value := make([]byte, 64)
				n, _ := unix.Getxattr(path, name, value)
				d[name] = string(value[:max(n, 0)])
			}
		}
	}
	return d
}

// differing are the paths at which two trees are not the same.
func differing(a, b map[string]string) []string {
	var paths []string
	for path, is := range a {
		if b[path] != is {
			paths = append(paths, path)
		}
	}
	for path := range b {
		if _, both := a[path]; !both {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths
}

func TestChangesAreListed(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	before := snapshotOf(t, home)
	s.up("box", "--overlay", home)
	if got := s.exec("box", "sh", "-euc", everyChange, home); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	if now := snapshotOf(t, home); len(differing(before, now)) > 0 {
		t.Errorf("the host has changed: %q", differing(before, now))
	}
	got := run(t, s.command("changes", "--json", "box"))
	var lines []string
	for line := range strings.Lines(got.stdout) {
		var c struct{ Path, Kind, Type, Was string }
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		rel, err := filepath.Rel(home, c.Path)
		if err != nil {
			t.Error(err)
		}
		lines = append(lines, strings.TrimSpace(c.Kind+" "+rel+" "+c.Type+" "+c.Was))
	}
	want := []string{
		"modified README file", "modified attr file",
		"modified becomes-directory directory file", "created becomes-directory/in file",
		"modified becomes-file file directory", "modified binary file", "created fifo fifo", "modified link symlink",
		"created odd\nname file", "modified old directory directory", "created old/c file", "created private directory",
		"modified script file", "deleted src/deep/file file", "created src/hard file", "created src/new file",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("changes:\n%s\nwant:\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	text := run(t, s.command("changes", "box"))
	if text.code != 0 || !strings.Contains(text.stdout, `odd\nname"`) || strings.Count(text.stdout, "\n") != len(want) {
		t.Errorf("changes: %+v", text)
	}
}

// Nothing is written to the host until it is applied, and then what was chosen.
func TestApplyWritesWhatWasChosen(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	before := snapshotOf(t, home)
	s.up("box", "--overlay", home)
	s.exec("box", "sh", "-euc", everyChange, home)
	inside := s.seen("box", home)
	if got := run(t, s.command("apply", "--dry-run", "box")); got.code != 0 || !strings.Contains(got.stderr, "16 changes") {
		t.Errorf("dry run: %+v", got)
	}
	if now := snapshotOf(t, home); len(differing(before, now)) > 0 {
		t.Fatalf("a dry run has changed %q", differing(before, now))
	}
	if got := run(t, s.command("apply", "--yes", "box", filepath.Join(home, "src"), "README")); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	chosen := snapshotOf(t, home)
	if got, want := differing(before, chosen), []string{"README", "src/deep/file", "src/hard", "src/new"}; !slices.Equal(got, want) {
		t.Errorf("applied %q, want %q", got, want)
	}
	if got := run(t, s.command("apply", "--yes", "box")); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	if got := differing(inside, snapshotOf(t, home)); len(got) > 0 {
		t.Errorf("all was applied, and the host is not what the sandbox saw at %q", got)
	}
	if got := run(t, s.command("apply", "--yes", "box")); got.code != 0 {
		t.Errorf("to apply again: %+v", got)
	}
	s.sh("box", "echo more >> "+home+"/src/new")
	if got := run(t, s.command("apply", "--yes", "box")); got.code != 0 {
		t.Errorf("to apply what was changed since: %+v", got)
	}
}

// seen is what a sandbox sees of a tree, with the ids that it has on the host.
func (s *sandboxes) seen(name, dir string) map[string]string {
	s.t.Helper()
	copied := filepath.Join(s.t.TempDir(), "seen")
	if err := os.Mkdir(copied, 0o755); err != nil {
		s.t.Fatal(err)
	}
	root := fmt.Sprintf("/proc/%d/root", s.pid(name))
	if out, err := exec.Command("cp", "-a", "--reflink=never", root+dir+"/.", copied).CombinedOutput(); err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
	if out, err := exec.Command("chown", "-R", "--no-dereference", "4242:4242", copied).CombinedOutput(); err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
	return snapshotOf(s.t, copied)
}

func TestApplyFindsConflicts(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	s.up("box", "--overlay", home)
	s.exec("box", "sh", "-euc", everyChange, home)
	overwrite(t, filepath.Join(home, "README"))
	before := snapshotOf(t, home)
	got := run(t, s.command("apply", "--yes", "box"))
	if got.code == 0 || !strings.Contains(got.stderr, filepath.Join(home, "README")) || !strings.Contains(got.stderr, "--overwrite") {
		t.Errorf("%+v", got)
	}
	if now := snapshotOf(t, home); len(differing(before, now)) > 0 {
		t.Errorf("in spite of the conflict these have changed: %q", differing(before, now))
	}
	if got := run(t, s.command("apply", "--yes", "--overwrite", "box")); got.code != 0 {
		t.Errorf("%+v", got)
	}
}

func TestSaveWritesWhatOthersRead(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	s.up("box", "--overlay", home)
	s.sh("box", "cd "+home+"; printf '1\ntwo\nthree\n' > README; echo new > src/new; rm -r old; chmod 755 script")
	dir := t.TempDir()
	for _, name := range []string{"changes.patch", "changes.tar"} {
		if got := run(t, s.command("save", "box", filepath.Join(dir, name))); got.code != 0 {
			t.Fatalf("%s: %+v", name, got)
		}
	}
	copied := filepath.Join(dir, "copy")
	for _, script := range []string{
		`cp -a "$1" "$2"; cd "$2"; git apply "$3/changes.patch"`,
		`cd "$2"; grep -q 1 README; grep -q new src/new; test ! -e old/a; test -x script`,
		`cd "$3"; tar -tf changes.tar | sort > list; printf '.wh.old\nREADME\nscript\nsrc/new\n' | diff - list`,
	} {
		if out, err := exec.Command("sh", "-euc", script, "sh", home, copied, dir).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", script, err, out)
		}
	}
	for _, test := range [][2]string{{"changes.patch", "exists already"}, {"changes.zip", ".tar, .patch or .diff"}} {
		if got := run(t, s.command("save", "box", filepath.Join(dir, test[0]))); got.code == 0 || !strings.Contains(got.stderr, test[1]) {
			t.Errorf("%s: %+v", test[0], got)
		}
	}
	if left, _ := filepath.Glob(dir + "/.sandbox-runtime*"); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestChangesRefusesBadInput(t *testing.T) {
	s := newSandboxes(t)
	s.up("plain")
	s.up("two", "--storage", "memory", "--overlay", t.TempDir(), "--overlay", t.TempDir())
	for _, test := range []struct {
		args []string
		says string
	}{
		{[]string{"changes"}, "name of a sandbox"},
		{[]string{"changes", "none"}, "none"},
		{[]string{"changes", "plain"}, "--overlay"},
		{[]string{"save", "plain"}, "--overlay"},
		{[]string{"do", "--review", "--", "true"}, "--overlay"},
		{[]string{"do", "--apply", "--keep", "--overlay", "/tmp", "--", "true"}, "one of them"},
		{[]string{"up", "--review", "box"}, `"do"`},
		{[]string{"up", "--from", "", "box"}, "--from: is empty"},
		{[]string{"snapshot", "--remove", ""}, "--remove: is empty"},
		{[]string{"undo", "plain", "2"}, "sandbox plain has 0 transactions"},
		{[]string{"snapshot", "two", "snap"}, "a snapshot is not available: its files are in memory"},
		{[]string{"snapshot", "--remove", "none"}, "snapshot --list"},
		{[]string{"snapshot", "--list", "--remove", "none"}, "one of them"},
		{[]string{"snapshot", "--remove", "one", "other"}, `"other" is one name too many`},
		{[]string{"up", "--from", "none", "box"}, "snapshot --list"},
		{[]string{"up", "a b"}, "1 to 128 letters"},
		{[]string{"up", "--", "-x"}, "begin with a letter"},
		{[]string{"changes", "--nonsense", "two"}, "unknown flag --nonsense"},
		{[]string{"changes", "two", ""}, "empty"},
		{[]string{"apply", "--yes", "two", ""}, "empty"},
		{[]string{"apply", "--yes", "two", "/etc/passwd"}, "/etc/passwd lies in none of the overlays: /"},
		{[]string{"diff", "two", "README"}, "no paths"},
		{[]string{"apply", "--yes", "two", "d"}, "absolute"},
		{[]string{"save", "two", "/nowhere/x.tar"}, "save /nowhere/x.tar: directory /nowhere: no such"},
	} {
		if got := run(t, s.command(test.args...)); got.code == 0 || !strings.Contains(got.stderr, test.says) || strings.Contains(got.stderr, "file does not exist") {
			t.Errorf("%q: %+v, want %q", test.args, got, test.says)
		}
	}
}

// Another directory of the name is none that the sandbox has seen: nothing is put there.
func TestChangesAreOfTheDirectoryThatWasOverlaid(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	s.up("box", "--overlay", home)
	s.sh("box", "echo new > "+home+"/README")
	if err := errors.Join(os.Rename(home, home+"-moved"), os.Mkdir(home, 0o755)); err != nil {
		t.Fatal(err)
	}
	if got := run(t, s.command("apply", "--yes", "--overwrite", "box")); got.code != 1 || !strings.Contains(got.stderr, "apply to "+home+": the host has moved, replaced or deleted the overlaid directory") {
		t.Errorf("%+v", got)
	}
	if there, err := os.ReadDir(home); err != nil || len(there) > 0 {
		t.Errorf("it has %v, %v", there, err)
	}
	if err := errors.Join(os.Remove(home), os.Rename(home+"-moved", home)); err != nil {
		t.Fatal(err)
	}
	if got := run(t, s.command("apply", "--yes", "box")); got.code != 0 || content(t, filepath.Join(home, "README")) != "new\n" {
		t.Errorf("back in its place: %+v", got)
	}
}

// What is left out is not counted as applied.
func TestApplyCountsWhatItApplies(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	s.up("box", "--overlay", home)
	s.sh("box", "cd "+home+"; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"s\")'")
	if got := run(t, s.command("apply", "--yes", "box")); got.code != 0 || !strings.Contains(got.stderr, "left out: "+home+"/s: ") || !strings.HasSuffix(got.stderr, "\nnothing to apply\n") {
		t.Errorf("a socket alone: %+v", got)
	}
	s.sh("box", "cd "+home+"; touch new")
	if got := run(t, s.command("apply", "--yes", "box")); got.code != 0 || !strings.HasSuffix(got.stderr, "\napplied 1 change\n") {
		t.Errorf("a socket and a file: %+v", got)
	}
}

// Who is in a directory and overlays it works in it.
func TestOverlayOfTheWorkingDirectoryIsWhereCommandsStart(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	for _, test := range []struct {
		flags []string
		want  string
	}{
		{[]string{"--overlay", "."}, filepath.Join(home, "src")},
		{[]string{"--overlay", ".."}, filepath.Join(home, "src")},
		{[]string{"--overlay", "deep"}, filepath.Join(home, "src/deep")},
		{[]string{"--overlay", "deep", "--overlay", "../old"}, "/workspace"},
		{[]string{"--overlay", ".", "--workspace", "."}, "/workspace"},
		{[]string{"--overlay", ".", "--cwd", "/tmp"}, "/tmp"},
	} {
		cmd := s.command(append(append([]string{"do"}, test.flags...), "--", "pwd")...)
		cmd.Dir = filepath.Join(home, "src")
		if got := run(t, cmd); got.code != 0 || got.stdout != test.want+"\n" {
			t.Errorf("%q: %+v, want %s", test.flags, got, test.want)
		}
	}
}
