package apply

import (
	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
)

// A witness decides whether the sandbox has seen the present state of a path in the tree.
type witness struct {
	tree *tree
	// overlay says that the tree is on an overlay.
	overlay bool
	// since is the begin of the sandbox, in nanoseconds; stamps are of paths as earlier
	// applies have left them.
	since  int64
	stamps map[string]layer.Stamp
	// replaced are directories of the tree in the place of those that the sandbox has
	// changed; unseen are directories that the host and the sandbox have both made.
	replaced, unseen map[string]bool
}

// changed tells whether others have changed an entry of the tree since the sandbox saw
// it. A directory has also changed if others have done something in it.
func (s *witness) changed(path string, e entry) bool {
	if s.isStamped(path, e) {
		return false
	}
	above, _ := layer.Split(path)
	return s.unseen[above] || e.ctime > s.since
}

// isStamped tells whether an entry is as an earlier apply has left it.
func (s *witness) isStamped(path string, e entry) bool {
	stamp, ok := s.stamps[path]
	return ok && stamp.CTime == e.ctime && (stamp.Inode == 0 || stamp.Inode == e.Ino)
}

// compareDirectory compares a directory of the tree with the layers' directory of the same path, and
// notes a difference.
func (s *witness) compareDirectory(path string, o layer.Origin) {
	if s.overlay || o == layer.OriginSame {
		return
	}
	e, err := s.tree.stat(path)
	if err != nil {
		return // the plan of its entries returns the error
	}
	if stamp, ok := s.stamps[path]; ok && stamp.Inode == e.Ino {
		return
	}
	switch o {
	case layer.OriginMade:
		s.unseen[path] = true
	case layer.OriginOther: // an exchange on XFS changes no ctime
		s.replaced[path] = true
	case layer.OriginDoubtful:
		s.replaced[path] = s.changed(path, e)
	case layer.OriginUnknown:
		s.replaced[path] = s.replacedByTimes(path, e)
	}
}

// replacedByTimes tells by times whether a directory was replaced, where no file handle
// can tell. A change in the directory sets ctime and mtime to the same moment; a rename
// sets ctime alone.
func (s *witness) replacedByTimes(path string, e entry) bool {
	if !s.changed(path, e) {
		return false
	}
	_, ours := s.stamps[path]
	return e.ctime != e.MTime || !ours && e.born > s.since
}

// replacedAbove returns the topmost directory at or above a path that the host has replaced. It returns such a
// directory once.
func (s *witness) replacedAbove(path string) (top string) {
	for at := path; len(s.replaced) > 0 && at != ""; at, _ = layer.Split(at) {
		if s.replaced[at] {
			top, s.replaced[at] = at, false
		}
	}
	return top
}

// checkRemoval finds the conflicts of a removed entry and of all entries below it.
func (p *Plan) checkRemoval(path string, e entry, reason string) error {
	if !e.dir() {
		return p.checkRemovalOf(path, e, reason)
	}
	if e.mount {
		return nil // victim refuses mounts
	}
	var dirs []place
	err := p.tree.walk(path, func(at string, e entry) error {
		if !e.dir() {
			return p.checkRemovalOf(at, e, "would be removed with its directory, and has changed on the host since the sandbox began")
		}
		if p.seen.changed(at, e) {
			dirs = append(dirs, place{at, e})
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, d := range dirs {
		if err := p.goesDirectory(d.path, d.entry, "would be removed with the directory above it, and has changed on the host since the sandbox began"); err != nil {
			return err
		}
	}
	if !p.seen.changed(path, e) {
		return nil
	}
	return p.goesDirectory(path, e, reason)
}

// A place is an entry and its path in the tree.
type place struct {
	path  string
	entry entry
}

func (p *Plan) checkRemovalOf(path string, e entry, reason string) error {
	if e.links > 1 && !p.steps.overlay {
		p.shared[e.inode()] = true
	}
	if !p.seen.changed(path, e) {
		return nil
	}
	again, err := p.comesAgain(path, e)
	if err == nil && !again {
		p.conflict(path, reason)
	}
	return err
}

// goesDirectory finds the conflict of a removed directory that others have changed.
// There is none if the new entries equal all entries of the directory: nothing is lost
// then.
func (p *Plan) goesDirectory(path string, e entry, reason string) error {
	again, err := p.comesAgain(path, e)
	if err != nil {
		return err
	}
	if again {
		err = p.tree.walk(path, func(at string, e entry) (err error) {
			if again {
				again, err = p.comesAgain(at, e)
			}
			return err
		})
	}
	if err == nil && !again {
		p.conflict(path, reason)
	}
	return err
}

// kin are names that earlier applies have left, of files that lose another name.
// Their ctime changes with that removal.
func (s *witness) kin(shared map[inode]bool) (found []place) {
	if len(shared) == 0 {
		return nil
	}
	for path := range s.stamps {
		e, err := s.tree.stat(path)
		if err == nil && !e.dir() && shared[e.inode()] && s.isStamped(path, e) {
			found = append(found, place{path, e})
		}
	}
	return found
}
