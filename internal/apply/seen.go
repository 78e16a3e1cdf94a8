package apply

import (
	"github.com/sandbox-runtime/sandbox-runtime/internal/layer"
)

// changed tells whether an entry of the tree is not what the sandbox saw. A
// directory has changed also when something was done in it.
func (p *Plan) changed(path string, e entry) bool {
	if p.ours(path, e) {
		return false
	}
	above, _ := split(path)
	return p.unseen[above] || e.ctime > p.o.Since.UnixNano()
}

// ours tells whether an entry is just as an earlier apply has left it.
func (p *Plan) ours(path string, e entry) bool {
	stamp, ok := p.o.Stamps[path]
	return ok && stamp.CTime == e.ctime && (stamp.Inode == 0 || stamp.Inode == e.Ino)
}

// meet notes what a directory of the tree is to the layers' directory of that path.
func (p *Plan) meet(path string, o layer.Origin) {
	if p.overlay || o == layer.OriginSame {
		return
	}
	e, err := p.tree.stat(path)
	if err != nil {
		return // the plan of what is in there finds that
	}
	if stamp, ok := p.o.Stamps[path]; ok && stamp.Inode == e.Ino {
		return
	}
	switch o {
	case layer.OriginMade:
		p.unseen[path] = true
	case layer.OriginOther:
		p.replaced[path] = p.changed(path, e)
	case layer.OriginUnknown:
		p.replaced[path] = p.replacedByTimes(path, e)
	}
}

// replacedByTimes judges a directory where no file handle does. A change in the
// directory sets ctime and mtime to the same moment; a rename sets ctime alone.
func (p *Plan) replacedByTimes(path string, e entry) bool {
	if !p.changed(path, e) {
		return false
	}
	_, ours := p.o.Stamps[path]
	return e.ctime != e.MTime || !ours && e.born > p.o.Since.UnixNano()
}

// checkPlace finds the conflict of a change in a directory that is another one on
// the host by now.
func (p *Plan) checkPlace(path string) {
	if len(p.replaced) == 0 {
		return
	}
	for above, _ := split(path); above != ""; above, _ = split(above) {
		if p.replaced[above] {
			p.conflict(above, "is another directory on the host than the one that the sandbox changed")
			p.replaced[above] = false // once is enough
		}
	}
	if p.replaced[path] {
		p.conflict(path, "is another directory on the host than the one that the sandbox changed")
		p.replaced[path] = false
	}
}

// goes finds the conflicts of an entry that is to go, with all that is below it.
func (p *Plan) goes(path string, e entry, reason string) error {
	if !e.dir() {
		return p.goesOne(path, e, reason)
	}
	if e.mount {
		return nil // victim refuses it
	}
	var dirs []place
	err := p.tree.walk(path, func(at string, e entry) error {
		if !e.dir() {
			return p.goesOne(at, e, "is to go with its directory, and has changed on the host since the sandbox began")
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
		if err := p.goesDirectory(d.path, d.entry, "is to go with the directory above it, and has changed on the host since the sandbox began"); err != nil {
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

// goesDirectory finds the conflict of a directory in which others have done
// something, or which they have put there. Nothing is lost if all of it comes again.
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

// findKin finds the names of files that earlier applies have left and that change
// their ctime when another name goes.
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
