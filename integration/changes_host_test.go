package integration

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/layertest"
)

// A hostEditor does random things to an overlaid tree from the host. What it does follows
// from its seed. Directories that are older than the sandbox lie in outside.
type hostEditor struct {
	*rand.Rand
	t            *testing.T
	dir, outside string
	edits        int
	changed      hostChanges
	rivals       []string // directories in which the sandbox has done something
}

// hostNames are names that the monkey uses, too, and one of the host's own.
var hostNames = []string{"a", "b c", "-rf", "src", "tab\there", ".envrc", "host"}

// edit changes something.
func (h *hostEditor) edit() {
	h.t.Helper()
	edits := map[string]func() error{
		"write":        func() error { return h.write(h.pick(isRegular)) },
		"append":       func() error { return h.append(h.pick(isRegular)) },
		"replace":      func() error { return h.replace(h.pick(isRegular)) },
		"create":       func() error { return h.create(h.free()) },
		"mkdir":        func() error { return h.mkdir(h.free()) },
		"delete":       func() error { return os.Remove(h.pick(isLeaf)) },
		"delete tree":  func() error { return os.RemoveAll(h.pickDir()) },
		"rename":       func() error { return os.Rename(h.pick(isLeaf), h.free()) },
		"rename tree":  func() error { return os.Rename(h.pickDir(), h.free()) },
		"swap":         func() error { return h.swap(h.pickDir(), h.pickDir()) },
		"older tree":   func() error { return h.older(h.pickDir()) },
		"older file":   func() error { return os.Rename(h.pickIn(h.outside, isRegular), h.pick(isRegular)) },
		"link":         func() error { return h.link(h.pick(isLeaf)) },
		"link of tree": func() error { return h.link(h.pickDir()) },
		"chmod":        func() error { return os.Chmod(h.pick(isRegular), 0o640) },
		"chmod tree":   func() error { return os.Chmod(h.pickDir(), 0o711) },
	}
	names := slices.Sorted(maps.Keys(edits))
	if h.IntN(2) == 0 { // these put entries that are older than the sandbox in other places
		names = []string{"older tree", "rename tree", "swap"}
	}
	before := entriesOf(h.t, h.dir)
	for range 20 {
		h.edits++
		name := names[h.IntN(len(names))]
		if err := edits[name](); err != nil {
			continue
		}
		if changed := h.changed.add(before, entriesOf(h.t, h.dir)); len(changed) > 0 {
			h.t.Logf("host: %s: %q", name, changed)
			return
		}
	}
	h.changed.add(before, entriesOf(h.t, h.dir)) // an edit may fail half-way
}

func isRegular(mode fs.FileMode) bool { return mode.IsRegular() }
func isLeaf(mode fs.FileMode) bool    { return !mode.IsDir() }

// pick chooses an entry of the tree, or the empty path.
func (h *hostEditor) pick(which func(fs.FileMode) bool) string { return h.pickIn(h.dir, which) }

// pickDir chooses a directory, often one in which the sandbox has done something.
func (h *hostEditor) pickDir() string {
	if len(h.rivals) > 0 && h.IntN(2) == 0 {
		return filepath.Join(h.dir, h.rivals[h.IntN(len(h.rivals))])
	}
	return h.pick(fs.FileMode.IsDir)
}

func (h *hostEditor) pickIn(dir string, which func(fs.FileMode) bool) string {
	var all []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && path != dir && which(d.Type()) {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	if len(all) == 0 {
		return ""
	}
	return all[h.IntN(len(all))]
}

// free is a path in some directory. Something may be there.
func (h *hostEditor) free() string {
	dir := h.dir
	if h.IntN(3) > 0 {
		if below := h.pickDir(); below != "" {
			dir = below
		}
	}
	return filepath.Join(dir, hostNames[h.IntN(len(hostNames))])
}

// content is content that nobody else has.
func (h *hostEditor) content() []byte { return fmt.Appendf(nil, "host %d\n", h.edits) }

func (h *hostEditor) put(path string, flags int) error {
	f, err := os.OpenFile(path, os.O_WRONLY|flags, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(h.content())
	return errors.Join(err, f.Chown(wildOwner, wildOwner), f.Close())
}

func (h *hostEditor) write(path string) error  { return h.put(path, os.O_TRUNC) }
func (h *hostEditor) append(path string) error { return h.put(path, os.O_APPEND) }
func (h *hostEditor) create(path string) error { return h.put(path, os.O_CREATE|os.O_EXCL) }

func (h *hostEditor) replace(path string) error {
	draft := filepath.Join(h.outside, fmt.Sprint("draft-", h.edits))
	if err := h.create(draft); err != nil {
		return err
	}
	return os.Rename(draft, path)
}

func (h *hostEditor) mkdir(path string) error {
	if err := os.Mkdir(path, 0o755); err != nil {
		return err
	}
	return errors.Join(os.Chown(path, wildOwner, wildOwner), h.create(filepath.Join(path, hostNames[h.IntN(len(hostNames))])))
}

// swap exchanges two directories. On XFS an exchange in one step can leave no trace
// (fs/xfs/xfs_inode.c:xfs_cross_rename()), and nothing can see it later: there are three
// renames.
func (h *hostEditor) swap(a, b string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(h.dir, &fs); err != nil {
		return err
	}
	if a == b || a == "" || b == "" || strings.HasPrefix(a, b+"/") || strings.HasPrefix(b, a+"/") {
		return unix.EINVAL
	}
	if fs.Type != unix.XFS_SUPER_MAGIC {
		return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
	}
	aside := filepath.Join(h.outside, fmt.Sprint("aside-", h.edits))
	if err := os.Rename(a, aside); err != nil {
		return err
	}
	if err := os.Rename(b, a); err != nil {
		return errors.Join(err, os.Rename(aside, a))
	}
	return os.Rename(aside, b)
}

// older puts a directory from outside in the place of another one: its twin, if there is
// one.
func (h *hostEditor) older(path string) error {
	rel, err := filepath.Rel(h.dir, path)
	if err != nil {
		return err
	}
	if err := h.swap(path, filepath.Join(h.twin(), rel)); err == nil {
		return nil
	}
	return h.swap(path, h.pickIn(h.outside, fs.FileMode.IsDir))
}

func (h *hostEditor) twin() string { return filepath.Join(h.outside, "twin") }

// makeTwin copies the tree to a place outside. Each file has other content there.
func (h *hostEditor) makeTwin() {
	h.t.Helper()
	if out, err := exec.Command("cp", "-a", h.dir, h.twin()).CombinedOutput(); err != nil {
		h.t.Fatalf("%v: %s", err, out)
	}
	err := filepath.WalkDir(h.twin(), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			err = h.append(path)
		}
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *hostEditor) link(path string) error {
	if path == "" {
		return unix.ENOENT
	}
	gone := filepath.Join(h.outside, fmt.Sprint("gone-", h.edits))
	if err := os.Rename(path, gone); err != nil {
		return err
	}
	return errors.Join(os.Symlink(hostNames[h.IntN(len(hostNames))], path), os.Lchown(path, wildOwner, wildOwner))
}

// A treeEntry is what is at a path of the host's tree.
type treeEntry struct {
	text string // without the time
	time string
	ino  uint64
	dir  bool
}

func entriesOf(t *testing.T, dir string) map[string]treeEntry {
	t.Helper()
	all := map[string]treeEntry{}
	for path, text := range layertest.Tree(t, dir, layertest.Directories|layertest.Owners|layertest.Times) {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, path), &st); err != nil {
			t.Fatal(err)
		}
		e := treeEntry{text: text, ino: st.Ino, dir: st.Mode&unix.S_IFMT == unix.S_IFDIR}
		if !e.dir { // the time is the last word
			end := strings.LastIndexByte(text, ' ')
			e.text, e.time = text[:end], text[end:]
		}
		all[path] = e
	}
	return all
}

// hostChanges are what the host has changed in a tree since the sandbox began.
type hostChanges struct {
	// left is how the host has left the paths. Paths that the host has removed are not
	// in it.
	left map[string]string
	// touched are the paths where the host has put another entry, or removed one.
	// above are the directories above these. marked are directories of which the host
	// has changed the mode alone.
	touched, above, marked map[string]bool
}

func newHostChanges() hostChanges {
	return hostChanges{map[string]string{}, map[string]bool{}, map[string]bool{}, map[string]bool{}}
}

// add notes what differs, and returns the paths.
func (c *hostChanges) add(before, after map[string]treeEntry) (paths []string) {
	for path := range union(before, after) {
		was, is := before[path], after[path]
		if was == is {
			continue
		}
		paths = append(paths, path)
		if delete(c.left, path); is.text != "" {
			c.left[path] = is.text
		}
		if was.dir && is.dir && was.ino == is.ino {
			c.marked[path] = true
			continue
		}
		c.touched[path] = true
		for above := filepath.Dir(path); above != "."; above = filepath.Dir(above) {
			c.above[above] = true
		}
	}
	return paths
}

// concerns tells whether the host has changed a path, or something above or below it.
func (c *hostChanges) concerns(path string) bool {
	return c.above[path] || c.marked[path] || isOrBelow(path, c.touched)
}

// concernsAll is concerns for a path with all below it and with its directories.
func (c *hostChanges) concernsAll(path string) bool {
	for marked := range c.marked {
		if marked == path || strings.HasPrefix(marked, path+"/") || strings.HasPrefix(path, marked+"/") {
			return true
		}
	}
	return c.concerns(path)
}

func isOrBelow(path string, some map[string]bool) bool {
	for ; path != "."; path = filepath.Dir(path) {
		if some[path] {
			return true
		}
	}
	return false
}

func union[V any](a, b map[string]V) map[string]bool {
	all := map[string]bool{}
	for path := range a {
		all[path] = true
	}
	for path := range b {
		all[path] = true
	}
	return all
}
