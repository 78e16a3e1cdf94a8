package rootfs

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
)

// hidePaths covers paths that overlays must not show with empty files and directories.
func (p *plan) hidePaths() error {
	var overlaid []*source
	p.root.eachSource(func(s *source) {
		if s.overlay != nil && !s.image { // an image has no paths of the host
			overlaid = append(overlaid, s)
		}
	})
	for _, s := range overlaid {
		seen := newAbsences(s)
		for _, place := range p.hidden(s) {
			if rel := s.pathWithin(place); rel != "" && seen.mayHave(rel) {
				if err := p.hideAt(path.Join(s.path, rel)); err != nil {
					return fmt.Errorf("overlay %s: %w", s.path, err)
				}
			}
		}
	}
	return nil
}

// hidden are the paths of the host that an overlay must not show, also some that lie
// elsewhere.
func (p *plan) hidden(s *source) []string {
	hidden := slices.Clone(p.rules.private)
	for _, home := range append(slices.Clone(p.rules.homes), s.path) {
		if !hostpaths.Within(home, s.path) && !hostpaths.Within(s.path, home) && !hostpaths.Within(home, s.real) && !hostpaths.Within(s.real, home) {
			continue
		}
		for _, name := range p.rules.secrets {
			hidden = append(hidden, strings.TrimSuffix(home, "/")+"/"+name)
		}
	}
	return hidden
}

// pathWithin is where in the source a path of the host lies, empty if it does not.
func (s *source) pathWithin(place string) string {
	for _, top := range []string{s.path, s.real} {
		if place != top && hostpaths.Within(place, top) {
			return strings.TrimPrefix(strings.TrimPrefix(place, top), "/")
		}
	}
	return ""
}

// hideAt hides the target of a path, if an overlay shows it. A bind that the user has
// named stays.
func (p *plan) hideAt(place string) error {
	at, missing, err := p.find(place)
	switch {
	case absent(err) || len(missing) > 0, p.peer != nil && os.IsPermission(err):
		return nil
	case err != nil:
		return fmt.Errorf("look for hidden files: %w", err)
	case at.node != nil && (at.node.named || at.node.kind == maskNode), at.bind == nil || at.bind.src.overlay == nil:
		return nil
	case at.node == nil:
		at.through(&node{kind: maskNode, file: !at.dir, mode: 0o755})
		return nil
	}
	at.node.kind, at.node.mode, at.node.src = maskNode, 0o755, nil
	at.node.onlyNamed()
	return nil
}

// onlyNamed makes a node's children directories of the skeleton, as far as they
// lead to binds of the user's own.
func (n *node) onlyNamed() {
	for name, c := range n.children {
		switch {
		case c.named || c.kind == areaNode:
		case c.kind == passNode && (c.covered || c.holdsNamed()):
			c.kind, c.mode = dirNode, 0o755
			c.onlyNamed()
		default:
			delete(n.children, name)
		}
	}
}
