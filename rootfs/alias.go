package rootfs

import (
	"path"
	"slices"

	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
)

// placeAliases shows each overlay whose path has symbolic links at the resolved path, too: absolute links in the tree,
// and files such as those of git worktrees, can name both. The resolved path is that of the open directory, so a link
// that is swapped after the check leads nowhere else. Both places show one mount, with the same masks.
//
// An overlay gets no second place where the root has something, or where another target is.
func (p *plan) placeAliases(named []target) error {
	for _, t := range named {
		if t.same || t.src.overlay == nil || !p.aliasable(t, named) {
			continue
		}
		if err := p.placeNamed(target{target: t.src.real, src: t.src, same: true}); err != nil {
			return err
		}
		t.src.alias = t.src.real
	}
	return nil
}

// aliasable says whether the resolved path of an overlay is a free place in directories of the sandbox's own.
func (p *plan) aliasable(t target, named []target) bool {
	resolved := t.src.real
	apart := func(other target) bool {
		return !hostpaths.Within(other.target, resolved) && !hostpaths.Within(resolved, other.target)
	}
	if targetAllowed(resolved) != nil || !apart(t) || slices.ContainsFunc(named, func(other target) bool { return !apart(other) }) {
		return false
	}
	at, missing, err := p.find(resolved)
	return err == nil && len(missing) > 0 && path.Join(at.path, path.Join(missing...)) == resolved &&
		!at.covered && at.bind == nil && at.node != nil && at.node.kind == dirNode
}
