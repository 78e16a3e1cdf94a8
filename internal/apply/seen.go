package apply

import (
	"github.com/sandbox-runtime/sandbox-runtime/internal/layer"
)

// changed tells whether others have changed an entry of the tree since the sandbox saw
// it. A directory has also changed if others have done something in it.
func (p *Plan) changed(path string, e entry) bool {
	if p.ours(path, e) {
		return false
	}
	above, _ := split(path)
	return p.unseen[above] || e.ctime > p.o.Since.UnixNano()
}

// ours tells whether an entry is as an earlier apply has left it.
func (p *Plan) ours(path string, e entry) bool {
	stamp, ok := p.o.Stamps[path]
	return ok && stamp.CTime == e.ctime && (stamp.Inode == 0 || stamp.Inode == e.Ino)
}

// meet compares a directory of the tree with the layers' directory of the same path, and
// notes a difference.
func (p *Plan) meet(path string, o layer.Origin) {
	if p.overlay || o == layer.OriginSame {
		return
	}
	e, err := p.tree.stat(path)
	if err != nil {
		return // the plan of its entries returns the error
	}
	if stamp, ok := p.o.Stamps[path]; ok && stamp.Inode == e.Ino {
		return
	}
	switch o {
	case layer.OriginMade:
		p.unseen[path] = true
	case layer.OriginOther: // an exchange on XFS changes no ctime
		p.replaced[path] = true
	case layer.OriginDoubtful:
		p.replaced[path] = p.changed(path, e)
	case layer.OriginUnknown:
		p.replaced[path] = p.replacedByTimes(path, e)
	}
}

// replacedByTimes tells by times whether a directory was replaced, where no file handle
// can tell. A change in the directory sets ctime and mtime to the same moment; a rename
// sets ctime alone.
func (p *Plan) replacedByTimes(path string, e entry) bool {
	if !p.changed(path, e) {
		return false
	}
	_, ours := p.o.Stamps[path]
	return e.ctime != e.MTime || !ours && e.born > p.o.Since.UnixNano()
}

// checkPlace finds the conflict of a change in a directory that the host has replaced. It
// reports the topmost such directory, once.
func (p *Plan) checkPlace(path string) {
	if len(p.replaced) == 0 {
		return
	}
	top := ""
	for at := path; at != ""; at, _ = split(at) {
		if p.replaced[at] {
			top, p.replaced[at] = at, false
		}
	}
	if top != "" {
		p.conflict(top, "is another directory on the host than the one that the sandbox changed")
	}
}

// goes finds the conflicts of a removed entry and of all entries below it.
func (p *Plan) goes(path string, e entry, reason string) error {
	if !e.dir() {
		return p.goesOne(path, e, reason)
	}
	if e.mount {
		return nil // victim refuses mounts
	}
	var dirs []place
	err := p.tree.walk(path, func(at string, e entry) error {
		if !e.dir() {
			return p.goesOne(at, e, "would be removed with its directory, and has changed on the host since the sandbox began")
		}
		if p.changed(at, e) {
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
	if !p.changed(path, e) {
		return nil
	}
	return p.goesDirectory(path, e, reason)
}

// A place is an entry and its path in the tree.
type place struct {
	path  string
	entry entry
}

func (p *Plan) goesOne(path string, e entry, reason string) error {
	if e.links > 1 && !p.overlay {
		p.shared[e.Ino] = true
	}
	if !p.changed(path, e) {
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

// findKin finds names that earlier applies have left, of files that lose another name.
// Their ctime changes with that removal.
func (p *Plan) findKin() {
	if len(p.shared) == 0 {
		return
	}
	for path := range p.o.Stamps {
		e, err := p.tree.stat(path)
		if err == nil && !e.dir() && p.shared[e.Ino] && p.ours(path, e) {
			p.kin = append(p.kin, place{path, e})
		}
	}
}
