package record

import (
	"cmp"
	"os"
	"slices"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A Place is a directory in which a sandbox's files can be changed, except /tmp. One of
// Tree, Area, Host and Same says where its files are.
type Place struct {
	// Path is inside, and for a tree on the host as well.
	Path string `json:"path"`
	// Tree is an overlay.
	Tree *Tree `json:"-"`
	// Area is the name of a directory of the sandbox's own, in the store.
	Area string `json:"-"`
	// Host is a directory of the host's that is written to itself.
	Host string `json:"host,omitempty"`
	// Same is the path of the tree that this is, too.
	Same string `json:"same,omitempty"`
}

// Places are a sandbox's, those nearer to the root first.
func (r Record) Places() []Place {
	var all []Place
	taken := map[string]bool{}
	add := func(p Place) {
		if !taken[p.Path] {
			taken[p.Path] = true
			all = append(all, p)
		}
	}
	for i := range r.Trees {
		add(Place{Path: r.Trees[i].Path, Tree: &r.Trees[i]})
	}
	for _, b := range r.Config.Binds {
		if info, err := os.Stat(b.Source); b.Writable && err == nil && info.IsDir() {
			add(Place{Path: b.Target, Host: b.Source})
		} else {
			taken[b.Target] = true
		}
	}
	switch dir := r.Config.Workspace; {
	case dir == "":
		add(Place{Path: spec.WorkspacePath, Area: "workspace"})
	case taken[dir] && slices.ContainsFunc(r.Trees, func(t Tree) bool { return t.Path == dir }):
		add(Place{Path: spec.WorkspacePath, Same: dir})
	default:
		add(Place{Path: spec.WorkspacePath, Host: dir})
	}
	add(Place{Path: spec.HomePath, Area: "home"})
	slices.SortStableFunc(all, func(a, b Place) int {
		return cmp.Or(cmp.Compare(strings.Count(a.Path, "/"), strings.Count(b.Path, "/")), cmp.Compare(a.Path, b.Path))
	})
	return all
}
