package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// place attaches a source at a target. It makes a missing mount point, and replaces the
// root's own file there.
func (p *plan) place(target string, n *node) error {
	at, missing, err := p.find(target)
	if err != nil {
		return fmt.Errorf("bind target %w", err)
	}
	where := path.Join(at.path, path.Join(missing...))
	if err := targetAllowed(where); err != nil {
		return err
	}
	if len(missing) == 0 {
		return p.cover(target, at, n)
	}
	if at.bind != nil && at.bind.src.overlay != nil {
		at.descend(missing).through(n)
		return nil
	}
	parent, err := p.directory(at, missing[:len(missing)-1])
	if err != nil {
		return fmt.Errorf("bind target %s: %w", target, err)
	}
	parent.addChild(missing[len(missing)-1], n)
	return nil
}

// cover attaches a source over the present file.
func (p *plan) cover(target string, at spot, n *node) error {
	switch {
	case at.path == "/":
		return fmt.Errorf("bind target %s: it is the sandbox's root; use --rootfs or --image for a root of your own", target)
	case at.node != nil && at.node.kind == areaNode && n.src.overlay != nil: // it takes the area's place
		*at.node = *n
	case at.node != nil && (at.node.covered || at.node.kind == areaNode):
		return fmt.Errorf("bind target %s: the sandbox has its own %s; bind to a place below it, or elsewhere", target, at.path)
	case at.node != nil && at.node.named:
		return fmt.Errorf("bind target %s: two binds have it as their target", target)
	case at.node != nil && at.node.holdsNamed():
		return fmt.Errorf("bind target %s: it would hide another bind below it", target)
	case at.dir && !n.src.dir:
		return fmt.Errorf("bind target %s: it is a directory in the sandbox, and %s is a file", target, n.src.path)
	case !at.dir && n.src.dir:
		return fmt.Errorf("bind target %s: it is not a directory in the sandbox, and %s is one", target, n.src.path)
	case at.node != nil:
		*at.node = *n
	default:
		at.through(n)
	}
	return nil
}

// descend is a place below this one, for which the overlay will have a directory.
func (s spot) descend(names []string) spot {
	s.node, s.rel = nil, path.Join(s.rel, path.Join(names...))
	return s
}

// through adds a node at a place within a bind's source.
func (s spot) through(n *node) {
	s.bind.putBelow(s.rel, n, func() *node { return &node{kind: passNode} })
}

func (n *node) holdsNamed() bool {
	for _, c := range n.children {
		if c.named || c.holdsNamed() {
			return true
		}
	}
	return false
}

// reserve makes sure of a directory for the caller to mount over.
func (p *plan) reserve(target string) error {
	at, missing, err := p.find(target)
	if err != nil {
		return fmt.Errorf("mount point %w", err)
	}
	where := path.Join(at.path, path.Join(missing...))
	led := where != target
	switch again := at.node != nil && at.node.covered && len(missing) == 0; {
	case where == "/" || led && targetAllowed(where) != nil || led && at.covered && !again:
		return fmt.Errorf("mount point %s: a symbolic link in the root leads it to %s", target, where)
	case at.covered:
		return nil
	case len(missing) == 0 && !at.dir:
		return fmt.Errorf("mount point %s: it is not a directory in the root", target)
	case len(missing) > 0 && at.bind != nil && at.bind.src.overlay != nil:
		at.descend(missing).through(&node{kind: passNode, covered: true})
	case len(missing) > 0:
		dir, err := p.directory(at, missing)
		if err != nil {
			return fmt.Errorf("mount point %s: %w", target, err)
		}
		dir.covered = true
	case at.node == nil:
		at.through(&node{kind: passNode, covered: true})
	case at.node.kind == bindNode:
		*at.node = *newDir()
		at.node.covered = true
	default:
		at.node.covered = true
	}
	return nil
}

// directory makes missing directories below a place.
func (p *plan) directory(at spot, names []string) (*node, error) {
	if !at.dir {
		return nil, fmt.Errorf("%s: %w", at.path, unix.ENOTDIR)
	}
	n := at.node
	if at.bind != nil {
		if at.covered || at.bind.src.writable {
			return nil, fmt.Errorf("there is no such place in %s; make it there first", at.bind.src.path)
		}
		var err error
		if n, err = p.unfold(at.bind, at.rel); err != nil {
			return nil, err
		}
	}
	for _, name := range names {
		n = n.addChild(name, newDir())
	}
	return n, nil
}

// unfold turns a bind into a directory of the skeleton with a bind for each of
// its entries, and so on down to rel, so that a mount point can be made there
// without writing to the source.
func (p *plan) unfold(n *node, rel string) (*node, error) {
	for {
		if n.kind == bindNode {
			if err := p.unfoldOne(n); err != nil {
				return nil, err
			}
		}
		if rel == "" {
			return n, nil
		}
		var name string
		name, rel, _ = strings.Cut(rel, "/")
		if n = n.children[name]; n == nil {
			return nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
		}
	}
}

func (p *plan) unfoldOne(n *node) error {
	names, err := n.src.names(maxEntries - p.entries)
	if err != nil {
		return err
	}
	if p.entries += len(names); p.entries > maxEntries {
		return fmt.Errorf("a mount point in %s needs each of its entries mounted on its own, and that is more than %d mounts; bind elsewhere, or make the mount point in %[1]s first", n.src.path, maxEntries)
	}
	for _, name := range names {
		if err := p.unfoldEntry(n, name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	n.mode, n.uid, n.gid, err = n.src.access(p.user)
	n.kind, n.src = dirNode, nil
	return err
}

// unfoldEntry adds an entry that is not planned otherwise. Sockets, fifos and devices are
// left out.
func (p *plan) unfoldEntry(n *node, name string) error {
	child := n.children[name]
	if child != nil && child.kind != passNode {
		return nil
	}
	s, link, err := n.src.entry(name)
	if err != nil {
		return err
	}
	if s != nil {
		p.sources.add(s)
	}
	switch {
	case child != nil && child.covered:
		child.kind, child.mode = dirNode, 0o755
	case child != nil && s != nil:
		child.kind, child.src = bindNode, s
	case s != nil:
		n.addChild(name, &node{kind: bindNode, src: s})
	case link != "":
		n.addChild(name, &node{kind: linkNode, text: link})
	}
	return nil
}

// access is the mode and owner, in ids of the inside, of a directory of the skeleton that
// stands for the source: it opens no more to any user than the source does. If an id is
// not mapped, its class has the rights of others.
func (s *source) access(u User) (mode, uid, gid uint32, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(s.fd, &st); err != nil {
		return 0, 0, 0, fmt.Errorf("stat %s: %w", s.path, err)
	}
	mode = st.Mode & 0o777
	others := mode & 0o7
	uid, okUID := s.inside(st.Uid, s.uid, u.UID)
	gid, okGID := s.inside(st.Gid, s.gid, u.GID)
	if !okUID {
		mode = mode&^0o700 | others<<6
	}
	if !okGID {
		mode = mode&^0o070 | others<<3
	}
	return mode, uid, gid, nil
}

// inside is the id in the sandbox of an id on disk.
func (s *source) inside(id, owner, user uint32) (uint32, bool) {
	switch {
	case s.shown == asOnDisk && id < IDCount:
		return id, true
	case s.shown == asUser && id == owner:
		return user, true
	}
	return 0, false
}
