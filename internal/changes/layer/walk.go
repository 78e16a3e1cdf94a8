package layer

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

const (
	// maxOpen bounds the descriptors of a walk; directories further up are
	// closed and opened again.
	maxOpen = 512
	// maxDepth and maxPath bound how far it goes down; no path that a program can
	// use in one piece (PATH_MAX) leads further. Each directory on the way has its
	// path in memory.
	maxDepth = 4096
	maxPath  = 8 * unix.PathMax
)

// ErrTooDeep is about a directory that is not listed.
var ErrTooDeep = fmt.Errorf("lies more than %d directories deep, or its path has more than %d bytes: its content is not listed", maxDepth, maxPath)

// walker goes through a stack, depth first.
type walker struct {
	*Stack
	o     Options
	yield func(spec.Change, error) bool
	// mark, if it is set, is called with each directory of the uppermost layer.
	mark func(path string, m Mark)
	// applied are the names that applies of these layers have written, by directory.
	applied map[string][]string

	chosen, ways map[string]bool // Options.Paths, and the directories on the way to them

	dirs    []*directory // from the root down to where we are
	open    int          // their descriptors
	lowest  int          // those above are closed
	stopped bool

	entries reader
	xattrs  xattrReader
	links   map[inode]string
	now     unix.Statx_t
	before  unix.Statx_t
}

// inode names a file of several names.
type inode struct {
	layer uint16
	ino   uint64
}

func (w *walker) walk() {
	defer w.close()
	w.applied = w.appliedNames()
	root, err := w.root(&w.xattrs)
	if err != nil {
		w.fail("", "open", err)
		return
	}
	root.listed = w.chosen == nil
	w.push(root)
	for !w.stopped && len(w.dirs) > 0 {
		d := w.dirs[len(w.dirs)-1]
		if len(d.entries) == 0 {
			w.pop()
			continue
		}
		if d.closed {
			w.reopen()
		}
		w.visit(d, d.next())
	}
}

// visit tells of one name and goes into it if it is a directory.
func (w *walker) visit(d *directory, group []entry) {
	path := Join(d.path, group[0].name)
	listed := d.listed || w.chosen[path]
	if !listed && !w.ways[path] {
		return
	}
	child, err := w.yieldName(d, group, path, listed)
	if err != nil && !isGone(err) {
		w.fail(path, "read", err)
	}
	if child == nil || w.stopped {
		if child != nil {
			child.close()
		}
		return
	}
	child.listed = listed
	w.push(child)
}

// yieldName yields the change of a name, and returns the directory to go into.
func (w *walker) yieldName(d *directory, group []entry, path string, listed bool) (*directory, error) {
	name, mask := group[0].name, wholeStat
	if w.o.Names {
		mask = unix.STATX_TYPE
	}
	was, err := d.baseType(name, mask, &w.before)
	if err != nil {
		return nil, err
	}
	top, typ := d.level(group[0].layer), uint8(typeWhiteout)
	if top == nil && !d.hidden && d.has(name) {
		return nil, nil // which came since the directory was read
	}
	if top != nil {
		st := &w.now
		if w.o.Names {
			st = nil
		}
		if typ, err = top.entryType(group[0], st, mask, &w.xattrs); err != nil {
			return nil, err
		}
	}
	switch typ {
	case typeGone:
		return nil, nil
	case typeWhiteout:
		return w.deleted(d, name, path, was, listed)
	case unix.DT_DIR:
		return w.directory(d, group, path, was, listed)
	}
	c := spec.Change{Path: path, Type: fileType(typ)}
	if listed {
		if err := w.file(d, top, name, was, c); err != nil {
			return nil, err
		}
	}
	return w.remains(d, name, was)
}

// deleted yields a name that is gone.
func (w *walker) deleted(d *directory, name, path string, was spec.FileType, listed bool) (*directory, error) {
	if was == "" || d.hidden && !w.o.Deleted {
		return nil, nil
	}
	if listed {
		w.tellOf(spec.Change{Path: path, Kind: spec.Deleted, Type: was})
	}
	return w.remains(d, name, was)
}

// remains is the base's directory if the layers have deleted it, and its content is to be
// listed.
func (w *walker) remains(d *directory, name string, was spec.FileType) (*directory, error) {
	if was != spec.TypeDirectory || !w.o.Deleted {
		return nil, nil
	}
	base, err := d.enterBase(name)
	if base < 0 {
		return nil, err
	}
	return &directory{path: Join(d.path, name), depth: d.depth + 1, base: base, hidden: true}, nil
}

// directory yields one of the layers' if it differs, and opens it.
func (w *walker) directory(d *directory, group []entry, path string, was spec.FileType, listed bool) (*directory, error) {
	child, err := w.enter(d, group, &w.xattrs)
	if err != nil || len(child.levels) == 0 {
		return nil, err
	}
	if w.mark != nil {
		w.mark(path, child.levels[0].Mark)
	}
	if was == spec.TypeDirectory {
		if child.base, err = d.enterBase(group[0].name); err != nil {
			child.close()
			return nil, err
		}
		w.compareDirectory(d, child)
	}
	if !listed {
		return child, nil
	}
	c := spec.Change{Path: path, Type: spec.TypeDirectory}
	mark(&c, was)
	if was == spec.TypeDirectory && child.hidden {
		c.Opaque, c.Was = true, was
	}
	if err := w.directoryChange(d, child, group[0].name, &c); err != nil {
		child.close()
		return nil, err
	}
	return child, nil
}

// compareDirectory compares a directory of the layers with the base's directory of the same path.
// The directory above them is the parent of both.
func (w *walker) compareDirectory(above, child *directory) {
	if child.base < 0 {
		return
	}
	if child.hidden && !above.hidden && w.isApplied(child) {
		// An apply has made the base's directory: the layers hide nothing of the host.
		child.hidden = false
	}
	if w.o.Merged != nil && !child.hidden {
		w.o.Merged(child.path, w.origin(child))
	}
}

func (w *walker) directoryChange(d, child *directory, name string, c *spec.Change) error {
	same := c.Kind == spec.Modified && c.Was == ""
	if w.o.Names {
		if !same {
			w.tellOf(*c)
		}
		return nil
	}
	fill(c, &w.now, w.IDs)
	var err error
	if c.Xattrs, err = w.xattrs.ofLayer(w.Stack, child.levels[0].fd, ""); err != nil {
		return err
	}
	if same && child.levels[0].noUser {
		if err := w.keepUser(d.base, name, c); err != nil {
			return err
		}
	}
	if same && w.now.Mode == w.before.Mode && w.sameOwner(&w.now, &w.before) {
		base, err := w.xattrs.ofBase(w.Stack, d.base, name)
		if err != nil && !isGone(err) {
			return err
		}
		if sameXattrs(c.Xattrs, base) {
			return nil
		}
	}
	w.tellOf(*c)
	return nil
}

// file yields a file that is no directory, if it differs.
func (w *walker) file(d *directory, top *level, name string, was spec.FileType, c spec.Change) error {
	mark(&c, was)
	if w.o.Names {
		w.tellOf(c)
		return nil
	}
	fill(&c, &w.now, w.IDs)
	var err error
	if c.Type == spec.TypeSymlink {
		c.Link, err = readLink(top.fd, name)
	} else {
		c.Xattrs, err = w.xattrs.ofLayer(w.Stack, top.fd, name)
	}
	if isGone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	overBase := was == c.Type && !d.hidden
	canCompare := w.now.Nlink == 1 || w.linkedAsApplied(c.Path)
	if overBase && top.noUser && c.Type == spec.TypeFile {
		if err := w.keepUser(d.base, name, &c); err != nil {
			return err
		}
	}
	if overBase && canCompare && sameFile(&w.now, &w.before) && w.sameOwner(&w.now, &w.before) {
		same, err := w.sameRest(d.base, name, &c)
		if same || err != nil {
			return err
		}
	}
	w.link(&c, top.layer)
	w.tellOf(c)
	return nil
}

// sameRest compares the facts that a stat does not have.
func (w *walker) sameRest(base int, name string, c *spec.Change) (bool, error) {
	if c.Type == spec.TypeSymlink {
		link, err := readLink(base, name)
		if isGone(err) {
			return false, nil
		}
		return link == c.Link, err
	}
	xattrs, err := w.xattrs.ofBase(w.Stack, base, name)
	if isGone(err) {
		return false, nil
	}
	if err != nil || !sameXattrs(xattrs, c.Xattrs) {
		return false, err
	}
	return c.Type != spec.TypeFile || w.sameContent(c.Path, c.Size), nil
}

// keepUser uses the base's user.* attributes for a file on a layer that cannot have any:
// the sandbox could not change them.
func (w *walker) keepUser(base int, name string, c *spec.Change) error {
	all, err := w.xattrs.ofBase(w.Stack, base, name)
	if err != nil && !isGone(err) {
		return err
	}
	for attr, value := range all {
		if !strings.HasPrefix(attr, "user.") {
			continue
		}
		if c.Xattrs == nil {
			c.Xattrs = map[string][]byte{}
		}
		c.Xattrs[attr] = value
	}
	return nil
}

// link notes a file that has several names.
func (w *walker) link(c *spec.Change, layer uint16) {
	if w.now.Nlink < 2 {
		return
	}
	key := inode{layer, w.now.Ino}
	if first, ok := w.links[key]; ok {
		c.HardLink = first
		return
	}
	if w.links == nil {
		w.links = map[inode]string{}
	}
	w.links[key] = c.Path
}

// mark sets a change's kind by the base's type.
func mark(c *spec.Change, was spec.FileType) {
	c.Kind = spec.Modified
	if was == "" {
		c.Kind = spec.Created
	} else if was != c.Type {
		c.Was = was
	}
}

func (w *walker) tellOf(c spec.Change) {
	if !w.stopped && !w.yield(c, nil) {
		w.stopped = true
	}
}

// fail yields an error about a path.
func (w *walker) fail(path, op string, err error) {
	if !w.stopped && !w.yield(spec.Change{Path: path}, &os.PathError{Op: op, Path: shortened(cmp.Or(path, ".")), Err: err}) {
		w.stopped = true
	}
	if errors.Is(err, errEndless) {
		w.stopped = true
	}
}

// shortened is a path for an error that a person reads.
func shortened(path string) string {
	const shown = 200
	if len(path) <= unix.PathMax {
		return path
	}
	return strings.ToValidUTF8(path[:shown], "") + "…"
}
