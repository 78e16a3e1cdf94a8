package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
)

// maxSubmounts bounds the mounts below one overlaid tree: each becomes a mount, and a
// layer of its own.
const maxSubmounts = 32

// overlay marks a source as one: its layer's number, once that is known.
type overlay struct{ layer int }

// ofOtherSource is the same overlay of another source.
func (o *overlay) ofOtherSource() *overlay {
	if o == nil {
		return nil
	}
	return &overlay{}
}

// Tree is a directory of the host, or the root of an image, that is overlaid.
type Tree struct {
	// Path is its place on the host and in the sandbox, Layer the number of its
	// layer in the store.
	Path  string
	Layer int
	// Alias is a second place in the sandbox, the path without symbolic links. Empty: there is none.
	Alias string
	// UID and GID are the owner on the host whose files the sandbox's user has
	// for its own. OnDisk says that there is none such: all ids are as on disk.
	UID, GID uint32
	OnDisk   bool
	// Image says that the tree is the root of an image, and of no path of the host.
	Image bool
	// Device and Inode tell the directory from another that takes its name. They are zero for an image.
	Device, Inode uint64
}

// Trees are the overlaid trees, by path.
func (r *Root) Trees() []Tree { return slices.Clone(r.trees) }

// openOverlays opens the overlaid directories, except the whole root.
func (ss *sources) openOverlays(cfg *Config, opened func(*source)) ([]target, error) {
	var out []target
	for _, dir := range cfg.Overlays {
		if dir == "/" {
			continue
		}
		s, err := ss.openOverlay(dir)
		if err != nil {
			return nil, fmt.Errorf("overlay %w", err)
		}
		opened(s)
		out = append(out, target{target: dir, src: s})
	}
	return out, nil
}

func (ss *sources) openOverlay(dir string) (*source, error) {
	s, err := ss.openNamed(ss.rules.Overlaying(), dir, false, asUser)
	switch {
	case err != nil:
		return nil, err
	case !s.dir:
		return nil, fmt.Errorf("%s is not a directory; overlay the directory above it", dir)
	case s.foreign:
		return nil, s.forbidden(fmt.Sprintf("belongs to user %d, and only that user and root may have it overlaid", s.uid))
	}
	s.overlay = &overlay{}
	return s, nil
}

// wholeRoot plans the root from the host's own, each directory of which is an
// overlay.
func (p *plan) wholeRoot(opened func(*source)) error {
	rules := p.sources.rules.Overlaying()
	rules.Whole = true
	s, err := p.sources.openNamed(rules, "/", false, asOnDisk)
	if err != nil {
		return err
	}
	opened(s)
	s.overlay = &overlay{}
	if err := p.rootOf(s); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(p.root.children)) {
		n := p.root.children[name]
		if n.kind != bindNode {
			continue
		}
		if !n.src.dir {
			n.src.overlay = nil
			continue
		}
		if err := p.placeSubmounts(n, "/"+name); err != nil {
			return fmt.Errorf("overlay %w", err)
		}
	}
	return nil
}

// placeOverlay attaches an overlay at its own path, with the mounts below.
func (p *plan) placeOverlay(t target) error {
	if err := p.place(t.target, &node{kind: bindNode, src: t.src, named: true}); err != nil {
		return err
	}
	n, err := p.overlayAt(t)
	if err != nil {
		return err
	}
	return p.placeSubmounts(n, t.target)
}

// overlayAt finds the node of an overlay that was placed.
func (p *plan) overlayAt(t target) (*node, error) {
	at, missing, err := p.find(t.target)
	if err == nil && (len(missing) > 0 || at.node == nil || at.node.src != t.src) {
		err = errors.New("something else is there by now")
	}
	if err != nil {
		return nil, fmt.Errorf("overlay %s: %w", t.target, err)
	}
	return at.node, nil
}

// placeSubmounts overlays the mounts below an overlay: an overlay does not cross mounts,
// and would show the empty directories below them.
func (p *plan) placeSubmounts(parent *node, at string) error {
	s := parent.src
	m, err := p.mounted.checkedMountsOf(s)
	if err != nil {
		return err
	}
	resolved, err := pathOf(s.fd)
	if err != nil {
		return fmt.Errorf("resolve %s: %w", s.path, err)
	}
	rels := map[string]bool{}
	for _, i := range m.below {
		rel := strings.TrimPrefix(strings.TrimPrefix(i.Mountpoint, resolved), "/")
		if !p.sources.rules.IsPrivate(i.Mountpoint) {
			rels[rel] = true
		}
	}
	if len(rels) > maxSubmounts {
		return fmt.Errorf("%s has %d file systems mounted below, more than the %d that are overlaid with it; overlay the directories that are needed", s.path, len(rels), maxSubmounts)
	}
	for _, rel := range slices.Sorted(maps.Keys(rels)) {
		if err := p.placeSubmount(parent, at, rel); err != nil {
			return err
		}
	}
	return nil
}

func (p *plan) placeSubmount(parent *node, at, rel string) error {
	where := path.Join(at, rel)
	s, err := p.sources.openSubmount(parent.src, rel)
	if err != nil {
		return fmt.Errorf("%s has a file system mounted below, at %s, that cannot be overlaid: %w; unmount it, or overlay another directory", parent.src.path, where, err)
	}
	if s == nil {
		return nil
	}
	there, missing, err := p.find(where)
	if err != nil {
		return fmt.Errorf("overlay of the mount at %w", err)
	}
	if len(missing) > 0 || there.bind == nil || there.bind.src.overlay == nil || there.rel == "" {
		return nil // something of the user's own is there, or nothing any more
	}
	there.through(&node{kind: bindNode, src: s})
	return nil
}

// openSubmount opens the mount at a place below an overlay's source. Nil: there is none,
// or it cannot be seen.
func (ss *sources) openSubmount(parent *source, rel string) (*source, error) {
	fd, err := parent.openBeneath(rel)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil, nil // another mount hides it
	}
	if err != nil {
		return nil, err
	}
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, 0, &st); err != nil {
		descriptor.CloseFD(fd)
		return nil, err
	}
	if st.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		descriptor.CloseFD(fd)
		return nil, nil
	}
	s, err := newSource(path.Join(parent.path, rel), fd, false, parent.shown, ss.rules.Overlaying())
	if err != nil {
		return nil, err
	}
	ss.add(s)
	if !s.dir {
		return nil, errors.New("it is not a directory")
	}
	s.uid, s.gid, s.peer, s.overlay = parent.uid, parent.gid, parent.peer, &overlay{}
	return s, nil
}

// number gives each overlay its layer.
func (p *plan) number() (trees []Tree) {
	p.root.eachSource(func(s *source) {
		if s.overlay == nil {
			return
		}
		s.overlay.layer = len(trees)
		t := Tree{Path: s.path, Layer: s.overlay.layer, Alias: s.alias, UID: s.uid, GID: s.gid, OnDisk: s.shown == asOnDisk, Image: s.image}
		if i, err := identify(s.fd); err == nil && !s.image { // else it is none that can be opened again
			t.Device, t.Inode = i.device(), i.inode
		}
		trees = append(trees, t)
	})
	return trees
}

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
