package apply

import (
	"strconv"

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

// procPath names the file of a descriptor, for calls that take no O_PATH descriptor.
func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
