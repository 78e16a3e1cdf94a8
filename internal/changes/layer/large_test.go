package layer

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// chain makes directories in each other, with two files in each that come before
// and after the next directory, and returns the path of the last.
func chain(t testing.TB, dir, name string, depth int) string {
	t.Helper()
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range depth {
		must(t, unix.Mkdirat(at, name, 0o755))
		next, err := unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		unix.Close(at)
		if err != nil {
			t.Fatal(err)
		}
		at = next
		for _, file := range []string{"a", "z"} {
			fd, err := unix.Openat(at, file, unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
			must(t, err)
			unix.Close(fd)
		}
	}
	unix.Close(at)
	return strings.Repeat(name+"/", depth)[:depth*(len(name)+1)-1]
}

// TestDeepTrees are listed beyond PATH_MAX, with a bounded number of descriptors,
// whatever of them is in the base, too.
func TestDeepTrees(t *testing.T) {
	const depth = 1500
	o := newOverlay(t)
	name := strings.Repeat("m", 20)
	chain(t, o.base, name, depth/2)
	for range 2 {
		o.push()
	}
	sh(t, o.merged, "rm -r m*")
	last := chain(t, o.merged, name, depth)
	s := o.stack()
	before := descriptors(t)
	n, most, previous := 0, 0, ""
	kinds := map[spec.ChangeKind]int{}
	for c, err := range s.Changes(Options{Deleted: true}) {
		if err != nil {
			t.Fatal(err)
		}
		if strings.ReplaceAll(c.Path, "/", "\x00") <= strings.ReplaceAll(previous, "/", "\x00") {
			t.Fatalf("a path of %d bytes comes after one of %d", len(c.Path), len(previous))
		}
		previous = c.Path
		kinds[c.Kind]++
		if n++; n%97 == 0 {
			most = max(most, descriptors(t)-before)
		}
	}
	if kinds[spec.Created] != 3*depth/2 || kinds[spec.Modified] != 3*depth/2 || kinds[spec.Deleted] != 0 {
		t.Errorf("listed %v of %d directories", kinds, depth)
	}
	if most > maxOpen+8 || most < maxOpen/2 {
		t.Errorf("%d descriptors were open", most)
	}
	f, err := s.Open(last + "/z")
	if err != nil {
		t.Fatalf("open a path of %d bytes: %.200v", len(last), err)
	}
	f.Close()
	if c, err := s.Below(last[:len(last)/2] + "/a"); err != nil || c.Type != spec.TypeFile {
		t.Errorf("below: %.200v", err)
	}
	if got := list(t, s, Options{Paths: []string{last}, Names: true}); len(got) != 3 {
		t.Errorf("%d changes at the end", len(got))
	}
}

func descriptors(t *testing.T) int {
	open, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(open)
}

// TestTooDeep says so, and goes on with the rest.
func TestTooDeep(t *testing.T) {
	for name, levels := range map[string]int{"d": maxDepth, strings.Repeat("d", 255): maxPath / 256} {
		o := newOverlay(t)
		o.push()
		chain(t, o.layer(0), name, levels+10)
		n, failed := 0, 0
		for _, err := range o.stack().Changes(Options{Names: true}) {
			if n++; err == nil {
				continue
			}
			if failed++; !strings.Contains(err.Error(), "not listed") {
				t.Errorf("%.100v", err)
			}
		}
		if n != 3*levels+2 || failed != 1 {
			t.Errorf("names of %d bytes: %d changes and %d errors", len(name), n-failed, failed)
		}
	}
}

// BenchmarkLargeDirectory lists a directory of a million names.
func BenchmarkLargeDirectory(b *testing.B) {
	const names = 1_000_000
	o := newOverlay(b)
	o.push()
	dir, err := os.Open(o.layer(0))
	if err != nil {
		b.Fatal(err)
	}
	defer dir.Close()
	at := int(dir.Fd())
	must(b, unix.Mknodat(at, "n0", unix.S_IFREG|0o644, 0))
	for i := 1; i < names; i++ { // one inode: the test takes less memory
		must(b, unix.Linkat(at, "n0", at, fmt.Sprint("n", i), 0))
	}
	o.listAll(b, names)
}
