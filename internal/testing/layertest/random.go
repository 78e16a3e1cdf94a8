package layertest

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Random writes random trees. The trees follow from its seed.
type Random struct {
	*rand.Rand
	// Odd adds files that only an archive can have: special files, owners, modes, extended
	// attributes.
	Odd bool
	// Binary gives some files a NUL.
	Binary bool
	// Names are names of files, DirNames those of directories.
	Names, DirNames []string
}

// NewRandom is one whose seed the test's log has.
func NewRandom(t testing.TB, seed uint64) *Random {
	t.Logf("seed %d", seed)
	return &Random{Rand: rand.New(rand.NewPCG(seed, 0)), Names: Names, DirNames: Names}
}

// Names are such as tools stumble over.
var Names = []string{
	"a", "b", "c.txt", "d", "with space", " begins", "ends ", "tab\there", "new\nline", "\"quoted\"", "back\\slash",
	"\xff\xfe", "übung", "-rf", "a\x1b[31mred", "\u202egnp.exe", "b -> c", "dev", "null", "\\n", "a\tb\n--- c", "#", "cr\r",
	strings.Repeat("long", 63) + "xyz",
}

// Settle keeps directories directories, and all else something else.
func (r *Random) Settle() {
	half := len(r.Names) / 2
	r.Names, r.DirNames = r.Names[:half], r.Names[half:]
}

// Grow makes n entries below dir, as far as none is in the way. A directory that
// is made is not empty, unless the tree is odd.
func (r *Random) Grow(t testing.TB, dir string, n int) {
	t.Helper()
	dirs := []string{dir}
	for range n {
		names, isDir := r.Names, r.IntN(4) == 0
		if isDir {
			names = r.DirNames
		}
		path := filepath.Join(pick(r, dirs), pick(r, names))
		_, err := os.Lstat(path)
		switch {
		case err == nil || len(path)-len(dir) > 3000:
		case isDir:
			r.dir(t, path)
			dirs = append(dirs, path)
		default:
			r.leaf(t, path)
		}
	}
}

func (r *Random) dir(t testing.TB, path string) {
	t.Helper()
	check(t, os.Mkdir(path, 0o755))
	if !r.Odd {
		r.leaf(t, filepath.Join(path, pick(r, r.Names)))
	}
}

// Edit makes n changes below dir, as far as they are possible.
func (r *Random) Edit(t testing.TB, dir string, n int) {
	t.Helper()
	for range n {
		path, other := r.below(t, dir), r.below(t, dir)
		if path == dir {
			continue
		}
		info, err := os.Lstat(path)
		check(t, err)
		switch r.IntN(8) {
		case 0:
			check(t, os.RemoveAll(path))
		case 1: // also a directory, which then is opaque
			check(t, os.RemoveAll(path))
			isDir := info.IsDir()
			if &r.Names[0] == &r.DirNames[0] { // not settled
				isDir = r.IntN(2) == 0
			}
			if !isDir {
				r.leaf(t, path)
				continue
			}
			r.dir(t, path)
			r.Grow(t, path, r.IntN(6))
		case 2:
			if info.IsDir() {
				r.Grow(t, path, 3)
			}
		case 3:
			_ = os.Link(path, filepath.Join(filepath.Dir(path), "link"))
		case 4:
			_ = os.Rename(path, other)
		case 5:
			if info.Mode().IsRegular() {
				check(t, os.Chmod(path, []fs.FileMode{0o644, 0o755}[r.IntN(2)]))
			}
		default:
			if info.Mode().IsRegular() {
				r.rewrite(t, path)
			}
		}
		if r.Odd {
			r.oddity(t, path)
		}
	}
}

// below is a random path in dir, or dir.
func (r *Random) below(t testing.TB, dir string) string {
	t.Helper()
	var all []string
	check(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		all = append(all, path)
		return err
	}))
	return pick(r, all)
}

func (r *Random) leaf(t testing.TB, path string) {
	t.Helper()
	switch kind := r.IntN(10); {
	case kind < 2:
		// Up, so that no link leads to itself: git apply cannot replace one that does.
		check(t, os.Symlink("../"+pick(r, r.Names)+pick(r, []string{"", "/x", "\n"}), path))
	case kind == 2 && r.Odd:
		check(t, unix.Mkfifo(path, 0o640))
	default:
		check(t, os.WriteFile(path, r.text(), []fs.FileMode{0o644, 0o755}[r.IntN(2)]))
	}
}

// text is none, with many lines that are alike, with other ends of line or none.
func (r *Random) text() []byte {
	var b bytes.Buffer
	for range []int{0, 1, 2, 40}[r.IntN(4)] {
		r.line(&b)
	}
	if r.IntN(4) == 0 {
		b.WriteString("no newline")
	}
	if r.Binary && r.IntN(3) == 0 {
		b.WriteByte(0)
	}
	return b.Bytes()
}

func (r *Random) line(b *bytes.Buffer) {
	b.WriteString(pick(r, []string{"", "a", "b", "-- a", "++ b", "@@ -1 +1 @@", "diff --git a/x b/x", "\\ No", "\x1b[2J", "\xff", " ", "\t}"}))
	if r.IntN(3) > 0 {
		fmt.Fprint(b, r.IntN(1000))
	}
	b.WriteString(pick(r, []string{"\n", "\n", "\n", "\r\n"}))
}

// rewrite changes a few lines of a file, or all.
func (r *Random) rewrite(t testing.TB, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	check(t, err)
	var b bytes.Buffer
	for line := range bytes.Lines(data) {
		switch r.IntN(10) {
		case 0:
			continue
		case 1:
			r.line(&b)
		}
		b.Write(line)
	}
	if r.IntN(8) == 0 {
		b = *bytes.NewBuffer(r.text())
	}
	check(t, os.WriteFile(path, b.Bytes(), 0o644))
}

// oddity changes something other than content.
func (r *Random) oddity(t testing.TB, path string) {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		return
	}
	switch regular := info.Mode().IsRegular(); r.IntN(6) {
	case 0:
		check(t, os.Lchown(path, r.IntN(70000), r.IntN(70000)))
	case 1:
		if regular {
			check(t, os.Chmod(path, fs.FileMode(r.IntN(0o1000))|fs.ModeSetuid))
		}
	case 2:
		if regular {
			err := unix.Setxattr(path, "user."+pick(r, []string{"a", "b c", "ü"}), []byte(pick(r, []string{"", "x", "\x00\xff\n="})), 0)
			if !errors.Is(err, unix.EOPNOTSUPP) { // tmpfs before Linux 6.6
				check(t, err)
			}
		}
	case 3:
		if regular {
			check(t, os.Chtimes(path, time.Time{}, time.Unix(int64(r.IntN(1<<31)), int64(r.IntN(1e9)))))
		}
	}
}

func pick[T any](r *Random, from []T) T { return from[r.IntN(len(from))] }

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
