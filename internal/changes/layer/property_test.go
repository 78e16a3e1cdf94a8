package layer

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// TestChangesMakeTheBaseWhatTheOverlayShows does whatever comes to mind to an
// overlay, then holds that the base with the changes is what the overlay shows,
// and that the lists agree with each other.
func TestChangesMakeTheBaseWhatTheOverlayShows(t *testing.T) {
	for seed := range uint64(200) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			o := newOverlay(t)
			r := monkey{rand.New(rand.NewPCG(seed, 5))}
			r.act(o.base, 40)
			for range 1 + seed%3 {
				o.push()
				r.act(o.merged, 1+r.IntN(60))
			}
			changesAreWhatShows(t, o)
		})
	}
}

// changesAreWhatShows compares the base with the changes and the tree that the overlay shows.
func changesAreWhatShows(t *testing.T, o *overlay) {
	t.Helper()
	s := o.stack()
	changes := list(t, s, Options{})
	copied := filepath.Join(o.dir, "copied")
	sh(t, o.dir, "cp -a base copied")
	for _, c := range changes {
		transfer(t, s, c, copied)
	}
	for _, c := range slices.Backward(changes) { // a new entry changes the time of its directory
		stamp(t, c, copied)
	}
	compare(t, snapshot(t, copied), snapshot(t, o.merged))
	listsAgree(t, o, s, changes)
	if t.Failed() {
		t.Logf("changes: %q", shorts(changes))
	}
}

// monkey does random things.
type monkey struct{ *rand.Rand }

var monkeyNames = []string{"a", "b", "c", "dd", ".wh.a", "new\nline", "\xff\xfe", strings.Repeat("n", 255)}

func (m monkey) path(dir string) string {
	parts := []string{dir}
	for range 1 + m.IntN(3) {
		parts = append(parts, monkeyNames[m.IntN(len(monkeyNames))])
	}
	return filepath.Join(parts...)
}

// act fails at much of what it tries, which is no error.
func (m monkey) act(dir string, n int) {
	for range n {
		path, other := m.path(dir), m.path(dir)
		switch m.IntN(18) {
		case 0, 1:
			_ = os.Mkdir(path, 0o700|fs.FileMode(m.IntN(0o100)))
		case 2, 3:
			m.write(path, os.O_CREATE|os.O_EXCL)
		case 4:
			m.write(path, 0)
		case 5:
			m.write(path, os.O_APPEND)
		case 6:
			_ = os.Truncate(path, int64(m.IntN(9)))
		case 7:
			_ = unix.Rmdir(path)
		case 8:
			_ = unix.Unlink(path)
		case 9:
			_ = removeAll(path)
		case 10:
			_ = os.Rename(path, other)
		case 11:
			_ = unix.Link(path, other)
		case 12:
			_ = os.Symlink(fmt.Sprint("../", m.IntN(3)), path)
		case 13:
			_ = unix.Chmod(path, uint32(m.IntN(0o10000))|0o400)
		case 14:
			_ = unix.Lchown(path, m.IntN(3), m.IntN(3))
		case 15:
			_ = unix.Lsetxattr(path, fmt.Sprint("user.", m.IntN(2)), []byte{byte(m.IntN(2))}, 0)
		case 16:
			_ = unix.Mkfifo(path, 0o600)
		case 17:
			if removeAll(path) == nil {
				_ = os.Mkdir(path, 0o755)
			}
		}
	}
}

// removeAll is os.RemoveAll, which waits where the parent is a fifo.
func removeAll(path string) error {
	if fi, err := os.Lstat(filepath.Dir(path)); err != nil || !fi.IsDir() {
		return fs.ErrNotExist
	}
	return os.RemoveAll(path)
}

func (m monkey) write(path string, flags int) {
	var st unix.Stat_t
	if unix.Lstat(path, &st) == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		return // a fifo would wait
	}
	f, err := os.OpenFile(path, flags|os.O_WRONLY, 0o644)
	if err != nil {
		return
	}
	defer f.Close()
	_, _ = fmt.Fprint(f, m.Uint32()%100)
}

// transfer makes a change, in a way that is simple enough to be right.
func transfer(t *testing.T, s *Stack, c spec.Change, dir string) {
	t.Helper()
	path := filepath.Join(dir, c.Path)
	if c.Kind == spec.Deleted || c.Type != spec.TypeDirectory || c.Was != "" {
		must(t, os.RemoveAll(path))
	}
	if c.Kind == spec.Deleted {
		return
	}
	switch {
	case c.HardLink != "":
		must(t, os.Link(filepath.Join(dir, c.HardLink), path))
		return
	case c.Type == spec.TypeFile:
		must(t, os.WriteFile(path, []byte(content(t, s, c.Path)), 0o600))
	case c.Type == spec.TypeDirectory:
		if err := os.Mkdir(path, 0o700); err != nil && (c.Kind == spec.Created || c.Was != "" || !os.IsExist(err)) {
			t.Error(err)
		}
	case c.Type == spec.TypeSymlink:
		must(t, os.Symlink(c.Link, path))
	case c.Type == spec.TypeFIFO:
		must(t, unix.Mkfifo(path, 0o600))
	default:
		t.Errorf("%s: %s", c.Path, c.Type)
	}
	must(t, unix.Lchown(path, int(c.UID), int(c.GID)))
	if c.Type == spec.TypeSymlink {
		return
	}
	must(t, unix.Chmod(path, c.Mode))
	for name := range xattrsOf(t, path) {
		must(t, unix.Lremovexattr(path, name))
	}
	for name, value := range c.Xattrs {
		must(t, unix.Lsetxattr(path, name, value, 0))
	}
}

func stamp(t *testing.T, c spec.Change, dir string) {
	if c.Kind == spec.Deleted || c.Type == spec.TypeDirectory {
		return
	}
	at := unix.NsecToTimespec(c.ModTime.UnixNano())
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(dir, c.Path), []unix.Timespec{at, at}, unix.AT_SYMLINK_NOFOLLOW))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// snapshot writes down all that there is in a tree.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	all, names := map[string]string{}, map[uint64]string{}
	must(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		rel := strings.TrimPrefix(strings.TrimPrefix(path, dir), "/")
		if err != nil || rel == "" {
			return err
		}
		all[rel] = describe(t, path, rel, names)
		return nil
	}))
	return all
}

func describe(t *testing.T, path, rel string, names map[uint64]string) string {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Lstat(path, &st))
	line := fmt.Sprintf("%o %d:%d %q", st.Mode, st.Uid, st.Gid, xattrsOf(t, path))
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		line += time.Unix(st.Mtim.Unix()).Format(" 15:04:05.000000000")
		if st.Nlink > 1 {
			if first := names[st.Ino]; first != "" { // the other names may be hidden
				line += " = " + first
			} else {
				names[st.Ino] = rel
			}
		}
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		b, err := os.ReadFile(path)
		must(t, err)
		line += fmt.Sprintf(" %q", b)
	case unix.S_IFLNK:
		link, err := os.Readlink(path)
		must(t, err)
		line += " -> " + link
	}
	return line
}

func xattrsOf(t *testing.T, path string) map[string]string {
	t.Helper()
	b := make([]byte, 4096)
	n, err := unix.Llistxattr(path, b)
	must(t, err)
	all := map[string]string{}
	for name := range bytes.SplitSeq(b[:n], []byte{0}) {
		value := make([]byte, 64)
		if strings.HasPrefix(string(name), "user.") {
			n, err := unix.Lgetxattr(path, string(name), value)
			must(t, err)
			all[string(name)] = string(value[:n])
		}
	}
	return all
}

func compare(t *testing.T, got, want map[string]string) {
	t.Helper()
	for path, text := range want {
		if got[path] != text {
			t.Errorf("%q:\n got %s\nwant %s", path, got[path], text)
		}
	}
	for path, text := range got {
		if want[path] == "" {
			t.Errorf("%q: got %s, want nothing", path, text)
		}
	}
}

// listsAgree holds that names are those of the full list, and that each path
// that is gone is listed where that was asked for.
func listsAgree(t *testing.T, o *overlay, s *Stack, changes []spec.Change) {
	t.Helper()
	names := map[string]spec.Change{}
	for _, c := range list(t, s, Options{Names: true}) {
		names[c.Path] = c
	}
	for _, c := range changes {
		n, ok := names[c.Path]
		ordinary := c.Type == spec.TypeDirectory && c.Kind == spec.Modified && c.Was == ""
		if !ordinary && (!ok || n.Kind != c.Kind || n.Type != c.Type || n.Was != c.Was || n.Opaque != c.Opaque) {
			t.Errorf("names have %q, want %q", shortForm(n), shortForm(c))
		}
	}
	gone := map[string]bool{}
	for _, c := range list(t, s, Options{Deleted: true}) {
		if c.Kind == spec.Deleted {
			gone[c.Path] = true
		}
	}
	shown := snapshot(t, o.merged)
	for path := range snapshot(t, o.base) {
		if gone[path] == (shown[path] != "") {
			t.Errorf("%q: listed as gone: %v, shown: %q", path, gone[path], shown[path])
		}
		delete(gone, path)
	}
	if len(gone) > 0 {
		t.Errorf("listed as gone, and never there: %q", slices.Collect(maps.Keys(gone)))
	}
}
