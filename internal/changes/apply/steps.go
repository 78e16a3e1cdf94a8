package apply

import (
	"cmp"
	"strconv"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// steps are the steps of a plan, with the entries that are staged for them.
type steps struct {
	tree *tree
	// overlay says that the tree is on an overlay, where no directory of a
	// lower layer can be renamed.
	overlay bool
	// overwrite says that the steps take any present file.
	overwrite bool
	ops       []op
	items     []item
	// firsts are the first items of files with several names, by the first of these
	// names; -1 where there is none yet.
	firsts map[string]int32
}

// add adds a step that has a name in the staging directory, and returns the index of the step.
func (s *steps) add(o op) int32 {
	o.Item = len(s.ops) + 1
	s.ops = append(s.ops, o)
	return int32(len(s.ops) - 1)
}

// stage adds an item of a change.
func (s *steps) stage(it item) {
	key := cmp.Or(it.change.HardLink, it.change.Path)
	it.first = -1
	if first, several := s.firsts[key]; several && first < 0 {
		s.firsts[key] = int32(len(s.items))
	} else if several {
		it.first = first
	}
	s.items = append(s.items, it)
}

// stagedPath is where an item is in the staging directory.
func (s *steps) stagedPath(it *item) string {
	o := &s.ops[it.op]
	if !it.inside {
		return o.staged()
	}
	return o.staged() + it.change.Path[len(o.Path):]
}

// inode identifies a directory. An overlay may give it another number each time.
func (s *steps) inode(e entry) uint64 {
	if s.overlay && e.dir() {
		return 0
	}
	return e.Ino
}

// remove plans that an entry goes, a directory with all that is below it.
func (s *steps) remove(path string, e entry) error {
	digest, err := s.tree.victim(path, e)
	if err != nil {
		return err
	}
	if e.dir() && s.overlay {
		return s.dissolve(path, e)
	}
	s.delete(path, e, digest)
	return nil
}

// delete plans the step that an entry goes.
func (s *steps) delete(path string, e entry, digest string) {
	o := op{Kind: opDelete, Path: path, Tree: digest, Any: s.overwrite}
	o.setOld(&e)
	s.add(o)
}

// dissolve plans that a directory goes entry by entry, because it cannot be
// moved.
func (s *steps) dissolve(path string, e entry) error {
	err := s.tree.each(path, func(at string, e entry) error {
		if e.dir() {
			return s.dissolve(at, e)
		}
		s.delete(at, e, "")
		return nil
	})
	if err != nil {
		return err
	}
	a, err := s.tree.attributesAt(path, e)
	if err != nil {
		return err
	}
	s.items = append(s.items, item{
		first: -1, op: s.add(op{Kind: opEmpty, Path: path}),
		copied: &copiedEntry{path, node{kind: spec.TypeDirectory, attributes: a}},
	})
	return nil
}

// deferAttributes plans that new directories get their attributes last where the
// move would not take, or keep, them: only a directory that its owner may write can
// be moved, and an exchange changes the time of one on XFS.
func (s *steps) deferAttributes() {
	for i := range s.items {
		it := &s.items[i]
		if it.inside || it.copied != nil || !it.dir() || it.mode&0o200 != 0 && s.ops[it.op].Kind != opReplace {
			continue
		}
		last := it.node().attributes
		it.mode |= 0o200
		first := it.node().attributes
		s.ops = append(s.ops, op{Kind: opAttributes, Path: it.path(), New: &last, Was: &first})
	}
}

// procPath names the file of a descriptor, for calls that take no O_PATH descriptor.
func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
