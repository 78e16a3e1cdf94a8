package index

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// inode is a file of any type. A regular file can have several names.
type inode struct {
	mode     uint16 // type and permissions
	uid, gid uint32
	rdev     uint32
	mtime    int64
	nsec     uint32

	// The content of a regular file lies in a device at an offset: 0 is the index itself,
	// N the archive of the N-th layer.
	size   int64
	offset int64
	device uint16

	target string
	xattrs []xattr
	dir    *directory

	place
}

func (i *inode) kind() uint16 { return i.mode & unix.S_IFMT }

// directory is the content of a directory.
type directory struct {
	parent  *inode
	entries map[string]entry
	path    int // the length of its path
	// touched is the last layer that has extracted the directory or something below it,
	// and opaque the last layer that has removed all that lower layers have below it.
	touched, opaque int32
	sorted          []child // in the order of the names, once the layout is planned
}

// entry is a name in a directory, and the layer that it is from.
type entry struct {
	*inode
	layer int32
}

// touched says that the current layer has extracted the entry or something below it.
func (t *tree) touched(e entry) bool {
	if e.dir != nil {
		return e.dir.touched == t.layer
	}
	return e.layer == t.layer
}

// tree is the merged tree of the layers so far.
type tree struct {
	limits Limits
	root   *inode
	layer  int32 // the current one, from 1
	names  int
	text   int64
	steps  int64
}

func newTree(l Limits) *tree {
	t := &tree{limits: l, root: newDirectory(0o755)}
	t.root.dir.parent = t.root
	return t
}

func newDirectory(mode uint16) *inode {
	return &inode{mode: unix.S_IFDIR | mode, dir: &directory{entries: map[string]entry{}}}
}

var (
	errMissing      = errors.New("no such file")
	errNotDirectory = errors.New("the parent is not a directory")
	errPathTooLong  = fmt.Errorf("the path is longer than %d bytes", maxPath)
	errNameTooLong  = fmt.Errorf("the name is longer than %d bytes", maxName)
)

// put adds an inode under a name. A directory over a directory replaces its metadata alone.
func (t *tree) put(parent *inode, name string, i *inode) error {
	d := parent.dir
	old, ok := d.entries[name]
	switch {
	case ok && old.dir != nil && i.dir != nil:
		content := old.dir
		*old.inode = *i
		old.dir = content
		t.touch(old.inode)
		return nil
	case ok:
		t.remove(d, name, old)
	}
	length := d.path + 1 + len(name)
	switch {
	case len(name) > maxName:
		return errNameTooLong
	case length > maxPath:
		return errPathTooLong
	case t.names >= t.limits.Files:
		return &LimitError{Limit: "files", Max: int64(t.limits.Files)}
	}
	if err := t.count(len(name)); err != nil {
		return err
	}
	t.names++
	d.entries[strings.Clone(name)] = entry{inode: i, layer: t.layer}
	if i.dir != nil {
		i.dir.parent, i.dir.path = parent, length
		t.touch(i)
	} else {
		t.touch(parent)
	}
	return nil
}

// count adds to the bytes of text.
func (t *tree) count(n int) error {
	if t.text += int64(n); t.text > t.limits.Text {
		return &LimitError{Limit: "bytes of names and attributes", Max: t.limits.Text}
	}
	return nil
}

// touch marks a directory and those above it. A directory above a marked one is marked.
func (t *tree) touch(i *inode) {
	for i.dir.touched != t.layer {
		i.dir.touched = t.layer
		i = i.dir.parent
	}
}

// remove removes a name with all below it.
func (t *tree) remove(d *directory, name string, e entry) {
	delete(d.entries, name)
	t.names--
	if e.dir != nil {
		for name, below := range e.dir.entries {
			t.remove(e.dir, name, below)
		}
	}
}

// removeLower removes a name, but keeps all that the current layer has extracted.
func (t *tree) removeLower(d *directory, name string) {
	e, ok := d.entries[name]
	switch {
	case !ok:
	case !t.touched(e):
		t.remove(d, name, e)
	case e.dir != nil:
		t.clearLower(e.dir)
	}
}

// clearLower removes the content of a directory that lower layers have made. Later entries
// are all of the current layer, so a second time is of no use: an archive full of opaque
// whiteouts costs no more than one.
func (t *tree) clearLower(d *directory) {
	if d.opaque == t.layer {
		return
	}
	d.opaque = t.layer
	for name := range d.entries {
		t.removeLower(d, name)
	}
}
