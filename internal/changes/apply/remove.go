package apply

import (
	"crypto/rand"
	"errors"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// remove plans that an entry goes, a directory with all that is below it.
func (p *Plan) remove(path string, e entry) error {
	digest, err := p.tree.victim(path, e)
	if err != nil {
		return err
	}
	if e.dir() && p.overlay {
		return p.dissolve(path, e)
	}
	p.delete(path, e, digest)
	return nil
}

// delete plans the step that an entry goes.
func (p *Plan) delete(path string, e entry, digest string) {
	o := op{Kind: opDelete, Path: path, Item: len(p.ops) + 1, Tree: digest, Any: p.o.Overwrite}
	o.setOld(&e)
	p.ops = append(p.ops, o)
}

// dissolve plans that a directory goes entry by entry, because it cannot be
// moved.
func (p *Plan) dissolve(path string, e entry) error {
	err := p.tree.each(path, func(at string, e entry) error {
		if e.dir() {
			return p.dissolve(at, e)
		}
		p.delete(at, e, "")
		return nil
	})
	if err != nil {
		return err
	}
	a, err := p.tree.attributesAt(path, e)
	if err != nil {
		return err
	}
	o := op{Kind: opEmpty, Path: path, Item: len(p.ops) + 1}
	p.ops = append(p.ops, o)
	p.items = append(p.items, item{
		first: -1, op: int32(len(p.ops) - 1),
		copied: &copiedEntry{path, node{kind: spec.TypeDirectory, attributes: a}},
	})
	return nil
}

// removeAll removes a path of the caller's own, with all below it. It goes onto no other
// mount.
func (t *tree) removeAll(path string) error {
	dir, name, err := t.parent(path)
	if err != nil {
		return err
	}
	err = unix.Unlinkat(dir, name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) {
		return &pathError{path, err}
	}
	if err := t.empty(path); err != nil {
		return err
	}
	if dir, name, err = t.parent(path); err != nil {
		return err
	}
	if err := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return &pathError{path, err}
	}
	return nil
}

// empty removes the content of a directory, except the spared names.
func (t *tree) empty(path string, spared ...string) error {
	if err := t.unlock(path); err != nil {
		return err
	}
	names, err := t.names(path)
	if err != nil {
		return err
	}
	for _, name := range names {
		if slices.Contains(spared, name) {
			continue
		}
		remove := t.removeAll
		if len(path)+1+len(name) > maxPath {
			remove = t.raiseDeep
		}
		if err := remove(layer.Join(path, name)); err != nil {
			return err
		}
	}
	return nil
}

// raisedPrefix begins the names that raiseDeep gives.
const raisedPrefix = "raised-"

// raiseDeep moves too deep directories to the root.
func (t *tree) raiseDeep(path string) error {
	above, name := layer.Split(path)
	dir, err := t.dir(above)
	if err != nil {
		return err
	}
	if err := unix.Renameat(dir, name, t.root, raisedPrefix+rand.Text()); err != nil {
		return &pathError{path[:longestNamed] + "…", err}
	}
	t.raised++
	return nil
}

// removeTree removes all that is in the root but the spared names.
func (t *tree) removeTree(spared ...string) error {
	for before := -1; before < t.raised; {
		before = t.raised
		if err := t.empty("", spared...); err != nil {
			return err
		}
	}
	return nil
}

// unlock gives a directory a mode in which its owner can empty it.
func (t *tree) unlock(path string) error {
	fd, err := t.dir(path)
	if err != nil {
		return err
	}
	e, err := statFD(fd)
	if err != nil || e.Mode&0o700 == 0o700 {
		return err
	}
	if err := unix.Chmod(procPath(fd), 0o700); err != nil {
		return &pathError{path, err}
	}
	return nil
}

// procPath names the file of a descriptor, for calls that take no O_PATH descriptor.
func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
