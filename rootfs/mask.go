package rootfs

import (
	"fmt"
	"os"
	"path"
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
		seen := hostpaths.NewAbsences(s.fd, s.names)
		for _, place := range p.sources.rules.Hidden(s.path, s.real) {
			if rel := s.pathWithin(place); rel != "" && seen.MayHave(rel) {
				if err := p.hideAt(path.Join(s.path, rel)); err != nil {
					return fmt.Errorf("overlay %s: %w", s.path, err)
				}
			}
		}
	}
	return nil
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
	case hostpaths.Absent(err) || len(missing) > 0, p.sources.peer != nil && os.IsPermission(err):
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
