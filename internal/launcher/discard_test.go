package launcher

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// countBelow is the number of files below a directory.
func countBelow(t *testing.T, dir string) (n int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			n++
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// The removal of a large directory ends with the launcher, and the next launcher goes
// on with it.
func TestCloseEndsTheRemovalOfDiscardedDirectories(t *testing.T) {
	testhost.Long(t)
	top := t.TempDir()
	for i := range 20 {
		dir := filepath.Join(top, "layer", strconv.Itoa(i))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for j := range 100 {
			if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(j)), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	store, err := os.Open(top)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	open := func() *Launcher {
		l, err := New(Dirs{State: t.TempDir(), Data: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	l := open()
	if err := l.layers.DiscardIn(store, "layer"); err != nil {
		t.Fatal(err)
	}
	l.Close()
	left := countBelow(t, top)
	if err := os.Mkdir(filepath.Join(top, "other"), 0o700); err != nil {
		t.Fatal(err)
	}
	if now := countBelow(t, top); now != left {
		t.Errorf("%d files, then %d: a removal goes on after Close", left, now)
	}
	l = open()
	defer l.Close()
	if err := l.layers.DiscardIn(store, "other"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all is removed", func() bool {
		entries, err := os.ReadDir(filepath.Join(top, "trash"))
		return err == nil && len(entries) == 0
	})
}
