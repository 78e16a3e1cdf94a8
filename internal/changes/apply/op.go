package apply

import (
	"strconv"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// An opKind is the effect of one step on the tree.
type opKind string

const (
	opCreate     opKind = "create"     // an item comes where nothing is
	opReplace    opKind = "replace"    // an item and the present file change places
	opDelete     opKind = "delete"     // the present file becomes an item
	opEmpty      opKind = "empty"      // an empty directory goes; the item is one like it
	opAttributes opKind = "attributes" // of a directory that stays
)

// An op is one step of a commit. It is part of the record on disk. Whether it
// has been done shows in the staging directory, so that it can be done, or
// undone, by another process at any time.
type op struct {
	Kind opKind
	Path string // in the tree
	Item int    // its name in the staging directory
	// Dir is the inode of the directory that Path is in; 0 if it is the root, or
	// on an overlay, which may change it.
	Dir uint64
	// Ino is of the new entry, or of the directory whose attributes are set; 0
	// where an overlay may change it.
	Ino uint64
	// Made is the new entry as it was staged. Records of version 1 have none.
	Made identity
	// Old is the replaced or deleted file. For a directory Tree describes the content.
	Old  identity
	Tree string
	// Any takes any present file.
	Any bool
	// New are attributes to set, Was those to restore.
	New, Was *attributes

	// ctime is the change time of Old, if that is a regular file with one name. It is no part of
	// the record.
	ctime int64
}

// setOld notes the replaced or deleted file.
func (o *op) setOld(e *entry) {
	o.Old = e.identity
	if e.fileType() == spec.TypeFile && e.links == 1 {
		o.ctime = e.ctime
	}
}

func (o *op) staged() string { return strconv.Itoa(o.Item) }

// isMade tells whether an entry of the tree is the new one of the step.
func (o *op) isMade(e entry) bool {
	if e.dir() && o.Made.dir() { // a later step may have set its mode
		return e.Ino == o.Made.Ino
	}
	return e.identity == o.Made
}

// takesDirectory tells whether the step takes a directory away.
func (o op) takesDirectory() bool {
	return o.Kind == opEmpty || o.Kind != opAttributes && o.Old.dir()
}

// makesEntry tells whether the step brings a new entry.
func (o *op) makesEntry() bool { return o.Kind == opCreate || o.Kind == opReplace }
