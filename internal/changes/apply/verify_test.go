package apply

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// What was read cannot be trusted: nothing of the tree is changed, and no journal
// stays.
func TestContentThatIsNotVerifiedIsNotApplied(t *testing.T) {
	b := newBox(t, host)
	b.work()
	before := describeTree(t, b.tree)
	untrusted := errors.New("untrusted")
	asked := 0
	err := b.applyWhole(Options{Verify: func(context.Context) error {
		asked++
		staged, err := filepath.Glob(filepath.Join(b.tree, journalPrefix+"*", "*"))
		if err != nil || len(staged) == 0 {
			t.Errorf("asked before anything was read: %q, %v", staged, err)
		}
		for _, path := range staged {
			if filepath.Base(path) == recordFile {
				t.Error("asked after the record was written")
			}
		}
		return untrusted
	}})
	if !errors.Is(err, untrusted) || asked != 1 {
		t.Errorf("asked %d times: %v", asked, err)
	}
	b.wantSame(before, describeTree(t, b.tree))
	if left, err := os.ReadDir(b.tree); err != nil || len(left) == 0 {
		t.Error(left, err)
	}
	b.clean()
	want := describeTree(t, b.merged)
	b.apply(Options{Verify: func(context.Context) error { return nil }})
	b.wantSame(want, describeTree(t, b.tree))
}

// Untie is told whether a directory goes or is replaced, after the content was verified. Its error ends the Commit.
func TestUntieIsToldWhetherADirectoryGoes(t *testing.T) {
	refused := errors.New("in use")
	for work, goes := range map[string]bool{
		"rm -r dir":                      true,
		"rmdir empty":                    true,
		"rm -r dir; echo > dir":          true,
		"rm -r dir; mkdir dir; >dir/new": true,
		"rm dir/file":                    false,
		"echo > new; mkdir made":         false,
		"chmod 700 dir; echo 1 > file":   false,
	} {
		b := newBox(t, "mkdir dir empty; echo 1 > dir/file; echo 2 > file")
		b.run(work)
		verified, told := false, false
		err := b.applyWhole(Options{
			Verify: func(context.Context) error { verified = true; return nil },
			Untie: func(_ context.Context, directories bool) error {
				told = directories
				if !verified {
					t.Errorf("%s: asked before the content was verified", work)
				}
				return refused
			},
		})
		if told != goes || !errors.Is(err, refused) {
			t.Errorf("%s: a directory goes: %t, want %t: %v", work, told, goes, err)
		}
	}
}
