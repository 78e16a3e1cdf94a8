package apply

import (
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// An item is an entry that is made in the staging directory. A plan has one for each
// new or modified path, so an item holds only the parts of its node that the change
// does not tell.
type item struct {
	change *spec.Change
	// copied is set in place of change: the item is a copy of a file of the tree.
	copied *copiedEntry
	// mode, uid, gid and xattrs are those of the node.
	mode, uid, gid uint32
	xattrs         map[string][]byte
	// source identifies the content that was copied: see layer.SourceOf.
	source int64
	// first is the item that this one is a hard link to, or -1.
	first int32
	// op is the step that brings it into the tree; with inside it comes in the
	// directory of that step.
	op     int32
	inside bool
}

// A copiedEntry is made like one that goes.
type copiedEntry struct {
	path string
	node node
}

// path is where the item comes to be in the tree.
func (it *item) path() string {
	if it.copied != nil {
		return it.copied.path
	}
	return it.change.Path
}

// node is the file to make.
func (it *item) node() node {
	if it.copied != nil {
		return it.copied.node
	}
	c := it.change
	return node{
		kind: c.Type, link: c.Link, block: c.Block, major: c.Major, minor: c.Minor,
		attributes: attributes{
			Mode: it.mode, UID: it.uid, GID: it.gid, Xattrs: it.xattrs,
			Sec: c.ModTime.Unix(), Nsec: int64(c.ModTime.Nanosecond()),
		},
	}
}

// dir tells whether the item is a directory.
func (it *item) dir() bool { return it.copied != nil || it.change.Type == spec.TypeDirectory }

// mtime is the modification time that the entry gets, in nanoseconds.
func (it *item) mtime() int64 {
	n := it.node()
	return n.Sec*1e9 + n.Nsec
}
