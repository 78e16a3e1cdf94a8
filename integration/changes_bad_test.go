package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What is full inside can be listed and applied: that takes no room there.
func TestChangesOfAFullStore(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	s.up("box", "--overlay", home, "--disk", "16m")
	got := s.exec("box", "sh", "-c", "cd "+home+"; echo new > README; rm -r old; head -c 20m /dev/zero > big; for i in 1 2 3; do echo x >> more; done; exit 0")
	if !strings.Contains(got.stderr, "No space left") {
		t.Fatalf("%+v", got)
	}
	inside := s.seen("box", home)
	for _, args := range [][]string{{"changes", "box"}, {"diff", "box"}, {"save", "box", filepath.Join(t.TempDir(), "x.tar")}, {"apply", "--yes", "box"}} {
		if got := run(t, s.command(args...)); got.code != 0 {
			t.Errorf("%q: %+v", args, got)
		}
	}
	if got := differing(inside, snapshotOf(t, home)); len(got) > 0 {
		t.Errorf("the host is not what the sandbox saw at %q", got)
	}
}

// While the sandbox writes on, an apply brings files that are whole, or says why it
// does not.
func TestChangesWhileTheSandboxWrites(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	s.up("box", "--overlay", home)
	s.detached("box", "cd "+home+`; touch /tmp/runs; while :; do for f in a b c; do
		head -c 100000 /dev/zero | tr '\0' $f > .new; mv .new $f; rm -rf dir; mkdir dir; mv $f dir/; done; done`)
	eventually(t, "the sandbox writes", func() bool {
		return s.exec("box", "sh", "-c", "test -e /tmp/runs -a -e "+home+"/dir").code == 0
	})
	for range 5 {
		for _, args := range [][]string{{"changes", "box"}, {"changes", "--names", "box"}, {"diff", "box"}, {"apply", "--yes", "--overwrite", "box"}} {
			got := run(t, s.command(args...))
			if got.code > 1 || got.code == 1 && !strings.HasPrefix(got.stderr, "sandbox-runtime: ") && !strings.Contains(got.stderr, "\nsandbox-runtime: ") || strings.Contains(got.stderr, "defect") {
				t.Errorf("%q: %+v", args, got)
			}
		}
	}
	err := filepath.Walk(home, func(path string, info os.FileInfo, err error) error {
		name := info.Name()
		if err != nil || !info.Mode().IsRegular() || len(name) != 1 || name == "x" || strings.HasPrefix(path, home+"/old/") {
			return err
		}
		text, err := os.ReadFile(path)
		if string(text) != strings.Repeat(name, 100000) {
			t.Errorf("%s has %d bytes, %.20q", path, len(text), text)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(home + "/.sandbox-runtime-*"); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// A file of a terabyte that is a hole takes neither time nor room; a chain of a
// hundred links, more than the kernel follows, is links.
func TestChangesOfHolesAndChains(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	s.up("box", "--overlay", home, "--file-size", "2t", "--disk", "64m")
	s.sh("box", "cd "+home+"; truncate -s 1T huge; echo end >> huge; ln -s README l0; for i in $(seq 100); do ln -s l$((i-1)) l$i; done")
	if got := run(t, s.command("changes", "box")); got.code != 0 || !strings.Contains(got.stdout, "huge") || strings.Count(got.stdout, "\n") != 102 {
		t.Errorf("%+v", got)
	}
	if got := run(t, s.command("diff", "box")); got.code != 0 || !strings.Contains(got.stdout, "Too large for a patch: files /dev/null and b/huge") || !strings.Contains(got.stdout, "+l99\n") {
		t.Errorf("diff: %d, %.500s, %s", got.code, got.stdout, got.stderr)
	}
	dir := t.TempDir()
	if got := run(t, s.command("save", "box", filepath.Join(dir, "x.tar"))); got.code == 0 || !strings.Contains(got.stderr, `"huge"`) {
		t.Errorf("save: %+v", got)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if got := run(t, s.command("apply", "--yes", "box")); got.code != 0 {
		t.Errorf("apply: %+v", got)
	}
	var st unix.Stat_t
	if err := unix.Stat(home+"/huge", &st); err != nil || st.Size != 1<<40+4 || st.Blocks > 1<<11 {
		t.Errorf("on the host: %d bytes, %d blocks, %v", st.Size, st.Blocks, err)
	}
	if to, err := os.Readlink(home + "/l100"); to != "l99" {
		t.Errorf("%q, %v", to, err)
	}
}
