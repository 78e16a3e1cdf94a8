package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A review may apply one path after the other, and then all.
func TestWhatAReviewHasAppliedIsNoConflictLater(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	cmd := s.command("do", "--overlay", home, "--review", "--", "sh", "-euc", everyChange, home)
	cmd.Stdin = strings.NewReader("a old becomes-file\na\n")
	got := run(t, cmd)
	if got.code != 0 || strings.Count(got.stderr, "applied ") != 2 || strings.Contains(got.stderr, "overwrite") {
		t.Errorf("%+v", got)
	}
	if text, err := os.ReadFile(filepath.Join(home, "README")); string(text) != "one\n2\nthree\n" {
		t.Errorf("%q, %v", text, err)
	}
}

// What is applied, and then deleted by an apply, is the host's to make again. What
// the host has deleted itself is a conflict.
func TestWhatAnApplyHasDeletedIsForgotten(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	s.up("box", "--overlay", home)
	apply := func(script string) result {
		t.Helper()
		s.sh("box", "cd "+home+"; "+script)
		return run(t, s.command("apply", "--yes", "box"))
	}
	for _, script := range []string{"mkdir made; echo a > made/f; echo b > made/g", "rm made/f"} {
		if got := apply(script); got.code != 0 {
			t.Fatalf("%+v", got)
		}
	}
	if err := os.WriteFile(filepath.Join(home, "made/f"), []byte("host"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := run(t, s.command("changes", "box")); got.code != 0 || strings.Contains(got.stdout, "made/f") {
		t.Errorf("%+v", got)
	}
	if err := os.Remove(filepath.Join(home, "made/g")); err != nil {
		t.Fatal(err)
	}
	if got := apply("echo more >> made/g"); got.code == 0 || !strings.Contains(got.stderr, home+"/made/g: was deleted on the host since") {
		t.Errorf("%+v", got)
	}
}
