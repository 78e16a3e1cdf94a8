package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/conffiles"
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
	same     *node     // of a sameNode, the overlay's
	file     bool      // of a maskNode: it hides a file
	made     string    // of a maskNode that is mounted: its place in the skeleton
	named    bool      // a bind of the user's own
	covered  bool      // the caller mounts something over it
	copy     bool      // of a fileNode: the layer below has the file
	host     fileState // of a fileNode with the text of a file of the host
	under    *source   // of a dirNode: the layer below
	merged   bool      // of a place: there is a layer below
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
// they hold. It touches no kernel object but descriptors.
type plan struct {
	root    *node
	rules   *rules
	user    User
	files   map[string]*os.File
	peer    *Peer
	sources []*source
	views   []*view
	// rootView is the view of the host's "/", if parts of the host's root are shown.
	rootView *view
	entries  int     // added by unfolding
	stamps   *Stamps // nil: the plan collects none
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
	for _, s := range p.sources {
		s.close()
	}
	for _, v := range p.views {
		v.close()
	}
}

// open is openSource for a part of the host that is not written to, and that the plan closes.
func (p *plan) open(name string) (*source, error) {
	p.stamps.add(name)
	s, err := openSource(name, false, asNobody, p.rules)
	if err == nil {
		p.sources = append(p.sources, s)
	}
	return s, err
}

// openNamed opens a source that the user named: by the descriptor that came with it, or
// else, for a caller that may see everything, by its path.
func (p *plan) openNamed(r *rules, name string, writable bool, as ownerView) (s *source, err error) {
	file := p.files[name]
	switch {
	case file == nil && p.peer != nil:
		return nil, fmt.Errorf("%s: no descriptor came with it", name)
	case !path.IsAbs(name):
		return nil, fmt.Errorf("%q: must be an absolute path", name)
	case file == nil:
		s, err = openSource(name, writable, as, r)
	default:
		s, err = heldSource(name, file, writable, as, r, p.peer)
	}
	if err == nil {
		p.sources = append(p.sources, s)
	}
	return s, err
}

// openPrefix opens a language prefix. A peer may have put it into the configuration, so
// the peer has to be able to list it, and the whole path is looked up with the peer's
// rights.
func (p *plan) openPrefix(name string) (*source, error) {
	if p.peer == nil {
		return p.open(name)
	}
	p.stamps.add(name)
	if !path.IsAbs(name) {
		return nil, fmt.Errorf("%q: must be an absolute path", name)
	}
	fd := -1
	err := p.peer.withRights(func() (err error) {
		fd, err = descriptor.Open(unix.AT_FDCWD, name, descriptor.NoMagicLinks, unix.O_RDONLY|unix.O_DIRECTORY)
		return err
	})
	if err != nil {
		return nil, openError(name, false, err)
	}
	s, err := newSource(name, fd, false, asNobody, p.rules)
	if err == nil {
		s.peer = p.peer
		p.sources = append(p.sources, s)
	}
	return s, err
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
