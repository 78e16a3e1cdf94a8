package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/rootfs/conffiles"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/stamps"
	"golang.org/x/sys/unix"
)

// maxEntries bounds the nodes that unfolding adds to a plan: each entry is a mount.
const maxEntries = 4096

// kind is the kind of a node of a plan.
type kind uint8

const (
	dirNode  kind = iota // a directory of the skeleton
	linkNode             // a symbolic link of the skeleton
	fileNode             // a generated file
	bindNode             // a source, attached here
	passNode             // a directory that the bind above has here
	areaNode             // a directory of the store
	maskNode             // an empty file or directory, over that of the overlay above
	sameNode             // an overlay that is attached elsewhere, once more
)

// node is a place in a planned root. Children of a bind or a pass are further
// mounts, at places that the bind's source has.
type node struct {
	kind     kind
	text     string // a link's target, a file's content, an area's name
	mode     uint32 // of a directory: its permission bits
	uid, gid uint32 // of a directory, as inside
	src      *source
	same     *node        // of a sameNode, the overlay's
	file     bool         // of a maskNode: it hides a file
	made     string       // of a maskNode that is mounted: its place in the skeleton
	named    bool         // a bind of the user's own
	covered  bool         // the caller mounts something over it
	copy     bool         // of a fileNode: the layer below has the file
	host     stamps.State // of a fileNode with the text of a file of the host
	under    *source      // of a dirNode: the layer below
	merged   bool         // of a place: there is a layer below
	children map[string]*node
}

func newDir() *node { return &node{kind: dirNode, mode: 0o755, children: map[string]*node{}} }

func (n *node) addChild(name string, child *node) *node {
	if n.children == nil {
		n.children = map[string]*node{}
	}
	n.children[name] = child
	return child
}

// plan is a root before anything is mounted: a tree of nodes, and the sources
// that they show. It touches no kernel object but descriptors.
type plan struct {
	root    *node
	user    User
	sources sources
	views   []*view
	// rootView is the view of the host's "/", if parts of the host's root are shown.
	rootView *view
	entries  int // added by unfolding
	packages *conffiles.Reader
	copies   func() (*os.File, error)
	began    time.Time // when the plan was begun: no file was looked at before
	under    *source   // the copies of the host's files, below /etc
	etc      string    // the place in the skeleton of the sandbox's own files of /etc
	// imageFiles are the generated files of /etc that cover files of an image.
	imageFiles map[string]*node

	mounted mountTable
}

func (p *plan) close() {
	p.sources.close()
	for _, v := range p.views {
		v.close()
	}
}

// spot is a place that was reached: a node, or (node nil) a place in the source
// of the bind above.
type spot struct {
	path    string // in the sandbox, all links resolved
	node    *node
	bind    *node  // the bind it lies in, or is
	rel     string // its place in that bind's source
	dir     bool
	covered bool // at or below a covered node
}

// find walks to a path of the planned root. It returns the rest of the path that is
// missing.
func (p *plan) find(target string) (at spot, missing []string, err error) {
	trail := []spot{spot{path: "/", dir: true}.withNode(p.root)}
	todo := split(target)
	for links := 0; len(todo) > 0; {
		name := todo[0]
		here := trail[len(trail)-1]
		todo = todo[1:]
		switch name {
		case ".":
			continue
		case "..":
			trail = trail[:max(1, len(trail)-1)]
			continue
		}
		next, link, err := here.step(name)
		switch {
		case errors.Is(err, fs.ErrNotExist) && slices.Contains(todo, ".."):
			return here, nil, fmt.Errorf("%s: it runs over a symbolic link that leads nowhere", target)
		case errors.Is(err, fs.ErrNotExist):
			return here, append([]string{name}, todo...), nil
		case err != nil:
			return here, nil, fmt.Errorf("%s: %w", target, err)
		case link == "":
			trail = append(trail, next)
			continue
		}
		if links++; links > 40 {
			return here, nil, fmt.Errorf("%s: %w", target, unix.ELOOP)
		}
		if path.IsAbs(link) {
			trail = trail[:1]
		}
		todo = append(split(link), todo...)
	}
	return trail[len(trail)-1], nil, nil
}

// step goes to an entry, or returns the target of the symbolic link that is
// there.
func (s spot) step(name string) (spot, string, error) {
	if !s.dir {
		return s, "", fmt.Errorf("%s: %w", s.path, unix.ENOTDIR)
	}
	next := spot{path: path.Join(s.path, name), bind: s.bind, rel: path.Join(s.rel, name), covered: s.covered}
	if s.node != nil {
		switch child := s.node.children[name]; {
		case child == nil:
		case child.kind == linkNode:
			return s, child.text, nil
		default:
			return next.withNode(child), "", nil
		}
	}
	if s.bind == nil {
		return s, "", fs.ErrNotExist
	}
	f, err := s.bind.src.lookup(next.rel)
	if err != nil {
		return s, "", fmt.Errorf("look at %s in %s: %w", next.rel, s.bind.src.path, err)
	}
	next.dir = f.mode&unix.S_IFMT == unix.S_IFDIR
	return next, f.link, nil
}

// withNode is the spot with a node that was found there.
func (s spot) withNode(n *node) spot {
	if n.kind == sameNode {
		n = n.same
	}
	s.node = n
	s.dir = n.kind != fileNode && !n.file
	switch {
	case n.covered:
		s.bind, s.rel, s.covered = nil, "", true
	case n.kind == bindNode:
		s.bind, s.rel, s.dir = n, "", n.src.dir
	case n.kind != passNode:
		s.bind, s.rel = nil, ""
	}
	return s
}
