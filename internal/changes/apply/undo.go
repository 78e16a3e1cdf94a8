package apply

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
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
	for i := range p.steps.ops {
		if p.steps.ops[i].Kind == opEmpty {
			s.emptied[p.steps.ops[i].Path] = true
		}
	}
	for i := range p.steps.ops {
		if err := s.save(&p.steps.ops[i]); err != nil {
			return nil, p.wrapError(fmt.Errorf("save the replaced files: %w", errorAbout(p.steps.ops[i].Path, err)))
		}
	}
	if err := s.saveFiles(undo); err != nil {
		return nil, p.wrapError(fmt.Errorf("save the replaced files: %w", err))
	}
	for i := len(s.dirs) - 1; i >= 0; i-- {
		d := &s.dirs[i]
		if _, err := s.maker.finish(d.path, &d.node); err != nil {
			return nil, p.wrapError(fmt.Errorf("save the replaced files: %w", errorAbout(d.path, err)))
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
	dirs []copiedEntry
	// files are regular files with one name. They are copied by several goroutines once all
	// directories are there.
	files []place
	// times are the change times of the saved files.
	times map[string]int64
}

func (s *saver) save(o *op) error {
	above, name := layer.Split(o.Path)
	if s.made[o.Path] {
		return nil
	}
	e, there, err := s.present(o)
	if err != nil {
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

// present describes the entry that a step replaces, deletes or changes.
func (s *saver) present(o *op) (e entry, there bool, err error) {
	if o.ctime != 0 { // as the plan has seen it: Commit finds a later change
		return entry{identity: o.Old, ctime: o.ctime, links: 1}, true, nil
	}
	if e, err = s.plan.tree.stat(o.Path); missing(err) || noDirectory(err) {
		return e, false, nil
	}
	return e, err == nil, err
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
		return s.plan.tree.each(path, func(at string, e entry) error {
			if s.made[at] {
				return nil
			}
			return s.copy(at, e, true)
		})
	}
	s.made[path] = true
	if e.fileType() == spec.TypeSocket {
		return nil
	}
	s.times[path] = e.ctime
	if first, ok := s.links[e.inode()]; ok {
		return s.maker.link(first, path)
	}
	f := place{path, e}
	if e.links > 1 {
		s.links[e.inode()] = path
	} else if e.fileType() == spec.TypeFile {
		s.files = append(s.files, f)
		return nil
	}
	return f.copy(s.plan.tree, s.maker)
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
	if _, err := s.maker.makeEntry(path, &n, nil); err != nil {
		return err
	}
	s.made[path] = true
	s.dirs = append(s.dirs, copiedEntry{path, n})
	return nil
}

// copy copies the entry from a tree to the tree of the maker. The entry must not be a directory.
func (f *place) copy(from *tree, m *maker) error {
	e := &f.entry
	n := node{
		kind: e.fileType(), attributes: attributesOf(*e),
		block: e.Mode&unix.S_IFMT == unix.S_IFBLK, major: e.major, minor: e.minor,
	}
	if n.kind == spec.TypeSymlink {
		var err error
		if n.link, err = from.readlink(f.path); err != nil {
			return err
		}
	}
	_, err := m.makeEntry(f.path, &n, func() (int, error) {
		fd, err := from.openFD(f.path, readSeen)
		if err != nil {
			return -1, err
		}
		if n.Xattrs, err = xattrsOf(fd); err != nil {
			return -1, errors.Join(err, unix.Close(fd))
		}
		return fd, nil
	})
	return err
}

// saveFiles copies the regular files, by several goroutines where these have the rights of the caller.
func (s *saver) saveFiles(undo *os.File) error {
	alike, err := threadsAreAlike()
	if err != nil {
		return err
	}
	if !alike {
		return s.savePart(undo, 0, 1)
	}
	var all errgroup.Group
	for part := range makers {
		all.Go(func() error { return s.savePart(undo, part, makers) })
	}
	return all.Wait()
}

// savePart copies one of several parts of the files.
func (s *saver) savePart(undo *os.File, part, of int) error {
	from, m := newTree(s.plan.target), newMaker(newTree(undo))
	defer from.forget()
	defer m.tree.forget()
	for files := range slices.Chunk(s.files, perBatch) {
		if part--; part >= 0 {
			continue
		}
		part = of - 1
		for _, f := range files {
			if err := f.copy(from, m); err != nil {
				return errorAbout(f.path, err)
			}
		}
	}
	return nil
}
