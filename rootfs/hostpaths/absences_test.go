package hostpaths

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

func looksAt(t *testing.T, dir string) *Absences {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	testhost.CloseAfter(t, f)
	return NewAbsences(int(f.Fd()), func(limit int) ([]string, error) { return f.Readdirnames(limit + 1) })
}

func TestLooksFindWhatALookupCanFind(t *testing.T) {
	dir := t.TempDir()
	testhost.WriteFile(t, dir+"/.config/gcloud", "")
	testhost.WriteFile(t, dir+"/.SSH", "")
	testhost.Symlink(t, "elsewhere", dir+"/.local")
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		t.Fatal(err)
	}
	l, listed := looksAt(t, dir), slices.Contains(listing, fs.Type)
	if listed && len(l.top) != 3 || !listed && l.top != nil {
		t.Errorf("listed are %q", l.top)
	}
	for rel, want := range map[string]bool{
		".config/gcloud": true, ".config/gh": false, ".aws": false, ".aws/x": false, ".local/share/keyrings": true,
	} {
		if got := l.MayHave(rel); got != want {
			t.Errorf("%s: %v, want %v", rel, got, want)
		}
	}
	if l.lacks[".aws"] == listed {
		t.Errorf(".aws was looked up: %v, and the names are listed: %v", l.lacks[".aws"], listed)
	}
	if l.MayHave(".ssh"); !l.lacks[".ssh"] {
		t.Error(".ssh was not looked up, although a lookup that ignores the case finds .SSH")
	}
}

// TestLooksWithoutAList has directories whose names do not tell what a lookup finds.
func TestLooksWithoutAList(t *testing.T) {
	large, foreign := t.TempDir(), t.TempDir()
	for i := range mostListed + 1 {
		testhost.WriteFile(t, fmt.Sprintf("%s/%d", large, i), "")
	}
	testhost.WriteFile(t, foreign+"/.s\u00adsh", "") // ext4 takes this name for .ssh in a directory that ignores the case
	for _, dir := range []string{large, foreign, "/proc/self"} {
		if l := looksAt(t, dir); l.top != nil {
			t.Errorf("%s: listed are %q", dir, l.top)
		}
	}
	if !looksAt(t, "/proc/self").MayHave("fd/1") {
		t.Error("/proc/self/fd/1 is not found")
	}
}
