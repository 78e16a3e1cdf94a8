package apply

import (
	"bytes"
	"fmt"
	"maps"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// compile makes steps of changes.
func (p *Plan) compile() error {
	for i := range p.changes {
		if first := p.changes[i].HardLink; first != "" {
			p.steps.firsts[first] = -1
		}
	}
	top, step := "", 0 // the new directory that holds the changes, and its step
	for i := range p.changes {
		c := &p.changes[i]
		if replaced := p.seen.replacedAbove(c.Path); replaced != "" {
			p.conflict(replaced, "is another directory on the host than the one that the sandbox changed")
		}
		switch {
		case reserved(c.Path):
			p.refuse(c.Path, reservedReason(c.Path))
		case len(c.Path) >= unix.PathMax:
			p.refuse(c.Path, "its path is too long to be named: move it up in the sandbox")
		case top != "" && isBelow(c.Path, top):
			if c.Kind == spec.Deleted || !p.carried(c) {
				continue
			}
			p.checkGone(c)
			if err := p.stageItem(c, nil, item{op: int32(step), inside: true}); err != nil {
				return err
			}
		case c.Kind == spec.Deleted:
			if err := p.deleted(c); err != nil {
				return err
			}
		case p.carried(c):
			if err := p.planEntry(c); err != nil {
				return err
			}
			if n := len(p.steps.ops); n > 0 && p.steps.ops[n-1].Path == c.Path && c.Type == spec.TypeDirectory && p.steps.ops[n-1].makesEntry() {
				top, step = c.Path, n-1
			}
		}
	}
	p.steps.deferAttributes()
	p.kin = p.seen.kin(p.shared)
	return p.places()
}

// places notes which directories the steps are in.
func (p *Plan) places() error {
	if p.steps.overlay {
		return nil
	}
	for i := range p.steps.ops {
		above, _ := layer.Split(p.steps.ops[i].Path)
		if err := p.parent(above); err != nil {
			return err
		}
		ino, err := p.tree.inode(above)
		if err != nil {
			return err
		}
		p.steps.ops[i].Dir = ino
	}
	return nil
}

// parent notes a directory in which something is done, and whether others have done
// something there before.
func (p *Plan) parent(path string) error {
	if _, known := p.parents[path]; known || path == "" || p.steps.overlay {
		return nil
	}
	e, err := p.tree.stat(path)
	if err != nil {
		return err
	}
	p.parents[path] = !p.seen.changed(path, e)
	return nil
}

// carried tells whether an entry is of a kind that is applied.
func (p *Plan) carried(c *spec.Change) bool {
	switch {
	case c.Type == spec.TypeSocket:
		p.refuse(c.Path, "a socket is nothing without the process that listens on it")
	case c.Type == spec.TypeDevice && !p.o.Devices:
		p.refuse(c.Path, "a device node")
	default:
		return true
	}
	return false
}

// deleted plans that an entry goes.
func (p *Plan) deleted(c *spec.Change) error {
	e, err := p.tree.stat(c.Path)
	if missing(err) || noDirectory(err) {
		return nil // so it is gone
	}
	if err != nil {
		return err
	}
	if c.Type != "" && e.fileType() != c.Type {
		p.conflict(c.Path, "is another kind of file now than the one the sandbox deleted")
		return p.steps.remove(c.Path, e)
	}
	if err := p.checkRemoval(c.Path, e, "was deleted in the sandbox, and has changed on the host since"); err != nil {
		return err
	}
	return p.steps.remove(c.Path, e)
}

// planEntry plans a new entry, or an entry that replaces the present one.
func (p *Plan) planEntry(c *spec.Change) error {
	e, err := p.tree.stat(c.Path)
	switch {
	case missing(err) || noDirectory(err):
		return p.create(c)
	case err != nil:
		return err
	case c.Type == spec.TypeDirectory && e.dir() && !c.Opaque:
		return p.merge(c, e)
	}
	if err := p.checkRemoval(c.Path, e, "has changed on the host since the sandbox began"); err != nil {
		return err
	}
	if p.steps.overlay && (e.dir() || c.Type == spec.TypeDirectory) {
		if err := p.steps.remove(c.Path, e); err != nil {
			return err
		}
		return p.planNew(c, op{Kind: opCreate, Path: c.Path}, nil)
	}
	was := op{Kind: opReplace, Path: c.Path, Any: p.o.Overwrite}
	was.setOld(&e)
	if was.Tree, err = p.tree.victim(c.Path, e); err != nil {
		return err
	}
	return p.planNew(c, was, &e)
}

// create plans an entry where there is nothing.
func (p *Plan) create(c *spec.Change) error {
	above, _ := layer.Split(c.Path)
	if _, err := p.tree.dir(above); err != nil {
		if !missing(err) && !noDirectory(err) {
			return err
		}
		return fmt.Errorf("%w: the tree is changing: list the changes again", errorAbout(c.Path, err))
	}
	if c.Kind == spec.Modified && c.Was == "" {
		p.conflict(c.Path, "was deleted on the host since the sandbox began")
	} else {
		p.checkGone(c)
	}
	return p.planNew(c, op{Kind: opCreate, Path: c.Path}, nil)
}

// merge plans the changes of a directory that stays.
func (p *Plan) merge(c *spec.Change, e entry) error {
	if e.mount {
		return &pathError{c.Path, unix.EXDEV}
	}
	old, err := p.tree.attributesAt(c.Path, e)
	if err != nil {
		return err
	}
	it := item{change: c}
	if err := p.complete(&it, &e); err != nil {
		return err
	}
	n := it.node()
	if old.Mode == n.Mode && old.UID == n.UID && old.GID == n.GID && maps.EqualFunc(old.Xattrs, n.Xattrs, bytes.Equal) {
		if old.Sec == n.Sec && old.Nsec == n.Nsec {
			return nil
		}
	} else if p.seen.changed(c.Path, e) {
		p.conflict(c.Path, "has other permissions or attributes in the sandbox, and has changed on the host, too")
	}
	p.steps.ops = append(p.steps.ops, op{Kind: opAttributes, Path: c.Path, Ino: p.steps.inode(e), New: &n.attributes, Was: &old, Any: p.o.Overwrite})
	return p.parent(c.Path)
}

// attributesAt reads the attributes of a directory of the tree.
func (t *tree) attributesAt(path string, e entry) (attributes, error) {
	a := attributesOf(e)
	var err error
	a.Xattrs, err = t.xattrsAt(path, unix.O_DIRECTORY)
	return a, err
}

// xattrsAt reads the extended attributes of a file or directory.
func (t *tree) xattrsAt(path string, flags int) (map[string][]byte, error) {
	f, err := t.open(path, unix.O_RDONLY|unix.O_NOFOLLOW|flags)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	xattrs, err := xattrsOf(int(f.Fd()))
	if err != nil {
		return nil, errorAbout(path, err)
	}
	return xattrs, nil
}

func attributesOf(e entry) attributes {
	mtime := unix.NsecToTimespec(e.MTime)
	sec, nsec := mtime.Unix()
	return attributes{Mode: e.Mode &^ unix.S_IFMT, UID: e.UID, GID: e.GID, Sec: sec, Nsec: nsec}
}

// planNew plans a step with a new entry.
func (p *Plan) planNew(c *spec.Change, o op, old *entry) error {
	return p.stageItem(c, old, item{op: p.steps.add(o)})
}

// stageItem plans the entry of a change, where old was if that is not nil.
func (p *Plan) stageItem(c *spec.Change, old *entry, it item) error {
	it.change = c
	err := p.complete(&it, old)
	if err == nil {
		p.steps.stage(it)
	}
	return err
}

// complete fills in the parts of an item's node that its change does not tell.
func (p *Plan) complete(it *item, old *entry) error {
	c, owner := it.change, p.owner
	if old != nil && old.fileType() != c.Type {
		old = nil
	}
	switch {
	case p.o.Owners != nil:
		owner = p.o.Owners(*c)
	case old != nil:
		owner = Owner{UID: old.UID, GID: old.GID}
	}
	it.mode, it.uid, it.gid = p.mode(c), owner.UID, owner.GID
	var err error
	if c.Type == spec.TypeFile || c.Type == spec.TypeDirectory { // to others none are given, and opening some has effects
		it.xattrs, err = p.xattrs(c, old)
	}
	return err
}

// mode drops the bits that would give a user of the file the rights of its owner. On a
// directory these bits give no rights.
func (p *Plan) mode(c *spec.Change) uint32 {
	mode := p.o.carriedMode(c)
	if mode != c.Mode&0o7777 {
		p.refuse(c.Path, "its setuid or setgid bit")
	}
	return mode
}

func (o *Options) carriedMode(c *spec.Change) uint32 {
	if o.Setuid || c.Type == spec.TypeDirectory {
		return c.Mode & 0o7777
	}
	return c.Mode & 0o7777 &^ (unix.S_ISUID | unix.S_ISGID)
}

// xattrs are a change's extended attributes that are carried over. The access
// control lists of an entry that is there stay where they are better.
func (p *Plan) xattrs(c *spec.Change, old *entry) (map[string][]byte, error) {
	var kept map[string][]byte
	lists := 0
	for name, value := range c.Xattrs {
		switch {
		case !layer.IsData(name):
			continue
		case name == capability && !p.o.Setuid:
			p.refuse(c.Path, "its file capabilities")
			continue
		case strings.HasPrefix(name, "system.") && p.o.Owners == nil && namesIDs(value):
			lists++
			continue
		}
		if kept == nil {
			kept = map[string][]byte{}
		}
		kept[name] = value
	}
	if lists == 0 {
		return kept, nil
	}
	p.refuse(c.Path, "its access control list, which names users or groups of the sandbox")
	if old == nil {
		return kept, nil
	}
	return p.tree.oldLists(c.Path, kept)
}

// oldLists adds the access control lists of the present file.
func (t *tree) oldLists(path string, xattrs map[string][]byte) (map[string][]byte, error) {
	old, err := t.xattrsAt(path, unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{accessACL, defaultACL} {
		if value, ok := old[name]; ok {
			if xattrs == nil {
				xattrs = map[string][]byte{}
			}
			xattrs[name] = value
		}
	}
	return xattrs, nil
}
