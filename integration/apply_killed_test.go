package integration

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/failpoint"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// An apply that was killed between two of its renames is ended by the next command
// that reads or writes the tree. The host's edit stays, and nothing is left behind.
func TestEachCommandEndsAKilledApply(t *testing.T) {
	testhost.Long(t)
	first := 1 // where a kill may leave a record
	for _, next := range []struct {
		name string
		args []string
		code int
	}{
		{"changes", []string{"changes", "box"}, 0},
		{"diff", []string{"diff", "box"}, 0},
		{"dry run", []string{"apply", "--dry-run", "box"}, 1},
		{"apply", []string{"apply", "--yes", "box"}, 1},
		{"discard", []string{"discard", "box"}, 0},
		{"down", []string{"down", "box"}, 0},
		{"up", []string{"up", "--overlay", "TREE", "box2"}, 0},
		{"do", []string{"do", "--overlay", "TREE", "--", "true"}, 0},
	} {
		t.Run(next.name, func(t *testing.T) {
			s, dir := newSandboxes(t), filepath.Join(t.TempDir(), "tree")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"a", "b", "c", "d"} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte("old\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			own(t, dir, 1000)
			s.up("box", "--overlay", dir)
			t.Cleanup(func() { s.downIfUp("box"); s.downIfUp("box2") })
			s.sh("box", "cd "+dir+"; for f in a b c d; do echo inside > $f; done")
			first = max(killBetweenRenames(t, s, dir, first)-15, 1)
			// a was applied, and d was not.
			if got := content(t, filepath.Join(dir, "a")); got != "inside\n" {
				t.Fatalf("a is %q", got)
			}
			if err := os.WriteFile(filepath.Join(dir, "d"), []byte("host\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			args := slices.Clone(next.args)
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "TREE", dir)
			}
			got := run(t, s.command(args...))
			if got.code != next.code {
				t.Errorf("%+v", got)
			}
			if left, err := filepath.Glob(filepath.Join(dir, ".sandbox-runtime-*")); err != nil || len(left) > 0 {
				t.Errorf("left: %q, %v", left, err)
			}
			// The rest could not be applied: the whole of it was taken back.
			for name, want := range map[string]string{"a": "old\n", "b": "old\n", "c": "old\n", "d": "host\n"} {
				if got := content(t, filepath.Join(dir, name)); got != want {
					t.Errorf("%s is %q, want %q", name, got, want)
				}
			}
			if says := "an earlier apply to " + dir + " was killed"; !slices.Contains([]string{"discard", "down", "do"}, next.name) && !strings.Contains(got.stderr, says) {
				t.Errorf("%q does not say %q", got.stderr, says)
			}
		})
	}
}

// killBetweenRenames kills an apply after one of its entries has come into the tree. It
// tries the points from first on, and returns the first that left a record.
func killBetweenRenames(t *testing.T, s *sandboxes, dir string, first int) (recorded int) {
	t.Helper()
	for n := first; ; n++ {
		trace, err := failpoint.Run(s.command("apply", "--yes", "box"), n, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if !trace.Killed {
			t.Fatalf("it was never killed between two renames: %d points", len(trace.Points))
		}
		if content(t, filepath.Join(dir, "a")) == "inside\n" {
			return recorded
		}
		records, err := filepath.Glob(filepath.Join(dir, ".sandbox-runtime-apply-*", "commit"))
		if err != nil {
			t.Fatal(err)
		}
		if len(records) > 0 && recorded == 0 { // the next apply begins with the renames
			recorded, n = n, 0
		}
	}
}

// An apply that is carried out to its end by another command is no change of the host
// for the sandbox that it was of.
func TestTheSandboxIsToldOfItsKilledApply(t *testing.T) {
	testhost.Long(t)
	s, dir := newSandboxes(t), filepath.Join(t.TempDir(), "tree")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("old\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	own(t, dir, 1000)
	s.up("box", "--overlay", dir)
	t.Cleanup(func() { s.downIfUp("box"); s.downIfUp("box2") })
	s.sh("box", "cd "+dir+"; echo inside > a; mkdir -p new/in; echo x > new/f; ln new/f new/in/link")
	killBetweenRenames(t, s, dir, 1)
	s.up("box2", "--overlay", dir)
	if got := content(t, filepath.Join(dir, "new/in/link")); got != "x\n" {
		t.Errorf("it was not carried out: %q", got)
	}
	if got := run(t, s.command("changes", "box")); got != (result{}) {
		t.Errorf("all was applied, but: %+v", got)
	}
	s.sh("box", "cd "+dir+"; echo more > a; rm -r new")
	if got := run(t, s.command("apply", "--yes", "box")); got.code != 0 {
		t.Errorf("%+v", got)
	}
	if _, err := os.Lstat(filepath.Join(dir, "new")); !os.IsNotExist(err) {
		t.Errorf("new is there: %v", err)
	}
}
