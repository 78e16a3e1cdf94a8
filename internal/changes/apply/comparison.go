package apply

import (
	"bytes"
	"errors"
	"maps"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A comparison compares entries of the tree with the new entries of the same paths.
type comparison struct {
	stack   *layer.Stack
	tree    *tree
	options *Options
}

// isEqual tells whether an entry of the tree equals the entry that would be put there. It
// does not look into directories.
func (q *comparison) isEqual(c *spec.Change, e entry) (bool, error) {
	if e.fileType() != c.Type || c.Type != spec.TypeSymlink && e.Mode&0o7777 != q.options.carriedMode(c) {
		return false, nil
	}
	switch c.Type {
	case spec.TypeSymlink:
		link, err := q.tree.readlink(c.Path)
		return link == c.Link, err
	case spec.TypeFile:
		same, err := q.sameContent(c, e)
		if !same || err != nil {
			return false, err
		}
		return q.sameAttributes(c)
	case spec.TypeDirectory:
		return q.sameAttributes(c)
	case spec.TypeFIFO:
		return true, nil
	}
	return false, nil
}

// sameAttributes tells whether the user's attributes of an entry of the tree are those
// that would be put there. An entry whose attributes cannot be read counts as different.
func (q *comparison) sameAttributes(c *spec.Change) (bool, error) {
	theirs, err := q.tree.xattrsAt(c.Path, unix.O_NONBLOCK|unix.O_NOCTTY)
	if errors.Is(err, unix.EACCES) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	notUser := func(name string, _ []byte) bool { return !isUsers(name) || !layer.IsData(name) }
	ours := maps.Clone(c.Xattrs)
	maps.DeleteFunc(ours, notUser)
	maps.DeleteFunc(theirs, notUser)
	return maps.EqualFunc(ours, theirs, bytes.Equal), nil
}

func (q *comparison) sameContent(c *spec.Change, e entry) (bool, error) {
	if e.Size != c.Size {
		return false, nil
	}
	ours, err := q.stack.Open(c.Path)
	if err != nil {
		return false, err
	}
	defer ours.Close()
	theirs, err := q.tree.openFile(c.Path)
	if errors.Is(err, unix.EACCES) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer theirs.Close()
	return layer.EqualContent(ours, theirs, c.Size)
}

// isThere tells whether the host has the same file as a change that is left out: git
// writes its configuration again to remove a branch. The change stays left out, since
// the sandbox may write the file until the plan is carried out.
func (q *comparison) isThere(c *spec.Change) (bool, error) {
	if c.Kind != spec.Modified || c.Type != spec.TypeFile || len(c.Xattrs) > 0 {
		return false, nil
	}
	e, err := q.tree.stat(c.Path)
	if missing(err) || noDirectory(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return q.isEqual(c, e)
}
