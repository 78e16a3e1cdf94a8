package apply

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/layer"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

const (
	// opaqueXattr marks a directory of a layer that hides the one below it.
	opaqueXattr = "trusted.overlay.opaque"
	// originXattr marks one that was there before. It names no directory if it is
	// empty.
	originXattr = "trusted.overlay.origin"
)

// Save writes the files that a Commit would replace into an empty directory, in the form
// of an overlay's upper layer. To apply that layer after the Commit, with all owners,
// modes and devices carried over, undoes the Commit. Sockets are left out. Save needs
// root's rights, as whiteouts and opaque directories do, and syncs nothing.
//
// Save returns the change times of the saved files, in nanoseconds, by path. Directories are left out.
func (p *Plan) Save(undo *os.File) (map[string]int64, error) {
	s := saver{
		plan: p, maker: newMaker(newTree(undo)), made: map[string]bool{}, emptied: map[string]bool{},
		links: map[inode]string{}, times: map[string]int64{},
	}
	defer p.tree.forget()
	defer s.maker.tree.forget()
	for i := range p.ops {
		if p.ops[i].Kind == opEmpty {
			s.emptied[p.ops[i].Path] = true
		}
	}
	for i := range p.ops {
		if err := s.save(&p.ops[i]); err != nil {
			return nil, p.about(fmt.Errorf("save the replaced files: %w", about(p.ops[i].Path, err)))
		}
	}
	for i := len(s.dirs) - 1; i >= 0; i-- {
		d := &s.dirs[i]
		if _, err := s.maker.finish(d.path, &d.node); err != nil {
			return nil, p.about(fmt.Errorf("save the replaced files: %w", about(d.path, err)))
		}
	}
	return s.times, nil
}

// A saver copies entries of a tree into a layer.
type saver struct {
	plan  *Plan
	maker *maker
	made  map[string]bool
	// emptied are directories that go entry by entry.
	emptied map[string]bool
	// links are the first names of files that have several.
	links map[inode]string
	// dirs are those that were made, and get their attributes last.
	dirs []copied
	// times are the change times of the saved files.
	times map[string]int64
}

func (s *saver) save(o *op) error {
	above, name := layer.Split(o.Path)
	if s.made[o.Path] {
		return nil
	}
	e, err := s.plan.tree.stat(o.Path)
	there := err == nil
	if err != nil && !missing(err) && !noDirectory(err) {
		return err
	}
	if o.Kind == opAttributes && !there {
		return nil // of a directory that is yet to be made
	}
	if err := s.parents(above); err != nil {
		return err
	}
	if there {
		return s.copy(o.Path, e, o.Kind != opAttributes)
	}
	s.made[o.Path] = true
	dir, err := s.maker.tree.dir(above)
	if err != nil {
		return err
	}
	return unix.Mknodat(dir, name, unix.S_IFCHR, 0)
}

// parents makes the directories that lead to an entry.
func (s *saver) parents(path string) error {
	if path == "" || s.made[path] {
		return nil
	}
	above, _ := layer.Split(path)
	if err := s.parents(above); err != nil {
		return err
	}
	e, err := s.plan.tree.stat(path)
	if err != nil {
		return err
	}
	return s.directory(path, e, false)
}

// copy copies an entry, a directory whole if it is to be replaced or deleted.
func (s *saver) copy(path string, e entry, whole bool) error {
	if e.dir() {
		if err := s.directory(path, e, whole); err != nil || !whole {
			return err
		}
		names, err := s.plan.tree.names(path)
		if err != nil {
			return err
		}
		for _, name := range names {
			at := layer.Join(path, name)
			e, err := s.plan.tree.stat(at)
			if err != nil {
				return err
			}
			if s.made[at] {
				continue
			}
			if err := s.copy(at, e, true); err != nil {
				return err
			}
		}
		return nil
	}
	s.made[path] = true
	if e.fileType() == spec.TypeSocket {
		return nil
	}
	s.times[path] = e.ctime
	if first, ok := s.links[e.inode()]; ok {
		return s.maker.link(first, path)
	}
	n, err := s.node(path, e)
	if err != nil {
		return err
	}
	if e.links > 1 {
		s.links[e.inode()] = path
	}
	_, err = s.maker.make(path, n, func() (int, error) { return s.plan.tree.openRegular(path) })
	return err
}

func (s *saver) directory(path string, e entry, opaque bool) error {
	a, err := s.plan.tree.attributesAt(path, e)
	if err != nil {
		return err
	}
	if a.Xattrs == nil {
		a.Xattrs = map[string][]byte{}
	}
	if opaque || s.emptied[path] {
		a.Xattrs[opaqueXattr] = []byte("y")
	} else {
		a.Xattrs[originXattr] = nil
	}
	n := node{kind: spec.TypeDirectory, attributes: a}
	if _, err := s.maker.make(path, &n, nil); err != nil {
		return err
	}
	s.made[path] = true
	s.dirs = append(s.dirs, copied{path, n})
	return nil
}

// node describes an entry, that is no directory, as it is.
func (s *saver) node(path string, e entry) (*node, error) {
	n := &node{
		kind: e.fileType(), attributes: attributesOf(e),
		block: e.Mode&unix.S_IFMT == unix.S_IFBLK, major: e.major, minor: e.minor,
	}
	var err error
	switch n.kind {
	case spec.TypeSymlink:
		n.link, err = s.plan.tree.readlink(path)
	case spec.TypeFile:
		var f *os.File
		if f, err = s.plan.tree.openFile(path); err != nil {
			return nil, err
		}
		n.Xattrs, err = xattrsOf(int(f.Fd()))
		err = errors.Join(err, f.Close())
	}
	return n, err
}
