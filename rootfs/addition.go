package rootfs

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/etcfiles"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/userns"
)

// ErrNotAddable says that a bind or an overlay cannot be added to a root that is mounted. A root that
// is mounted with it from the start can have it.
var ErrNotAddable = errors.New("it cannot be added to a root that is mounted")

// A Shown is a root that is mounted in a sandbox in which no command has run. Mount points for binds
// and overlays can be made in it, as far as they lie in directories of the sandbox's own. The caller
// must close it.
type Shown struct {
	root     *node
	skeleton *os.File // the top of the skeleton, through a mount of the launcher's own
	// etc are the places, below the skeleton, of the files of /etc that change when a request takes the root.
	etc map[string]string
	// spaces has a namespace with the map of the directories of the user that asks, made ahead: to make one takes
	// longer than the rest of an addition.
	spaces userns.Namespaces
}

// newShown is the root that is about to be mounted, for additions of the peer, or of this process.
func newShown(p *plan, skeleton *os.File, i userns.IDs, peer *Peer) *Shown {
	s := &Shown{root: p.root.places(), skeleton: skeleton, etc: p.etcPlaces()}
	asks := source{uid: uint32(os.Geteuid()), gid: uint32(os.Getegid()), shown: asUser}
	if peer != nil {
		asks.uid, asks.gid = peer.UID, peer.GIDs[0]
	}
	s.spaces.Start(mapFor(i, &asks))
	return s
}

// etcPlaces are the places of the files of /etc with the host name and the search domains. An image can lack these files.
func (p *plan) etcPlaces() map[string]string {
	places := map[string]string{}
	for _, name := range imageFiles {
		if p.imageFiles == nil {
			places[name] = path.Join(cmp.Or(p.etc, "root/etc"), name)
		} else if n := p.imageFiles[name]; n != nil {
			places[name] = n.made
		}
	}
	return places
}

// places is a copy of a tree with only that which [addition.find] needs. A tree itself has the content
// of its files, and a pool keeps many.
func (n *node) places() *node {
	c := &node{kind: n.kind, covered: n.covered, merged: n.under != nil}
	if n.kind == areaNode {
		c.text = n.text
	}
	if n.kind == dirNode || n.kind == areaNode {
		for name, child := range n.children {
			c.addChild(name, child.places())
		}
	}
	return c
}

// TakeShown hands over the description of the root for later additions. It is nil unless the Config
// has HostMounts, before Mount and after the first call.
func (r *Root) TakeShown() *Shown {
	shown := r.shown
	r.shown = nil
	return shown
}

// Close gives up the skeleton and the namespaces. It is safe to call on nil, and twice.
func (s *Shown) Close() {
	if s != nil {
		s.skeleton.Close()
		s.spaces.Close()
	}
}

// SetHostname gives the host name to the files of /etc that have it.
func (s *Shown) SetHostname(name string) error {
	for file, text := range etcfiles.WithHostname(name) {
		if err := s.write(file, text); err != nil {
			return err
		}
	}
	return nil
}

// SetResolver gives the file resolv.conf(5) the search domains and options of a Config. An image can lack the file.
func (s *Shown) SetResolver(cfg Config) error {
	own := cfg.ownEtc()
	if err := own.Validate(); err != nil {
		return err
	}
	return s.write(etcfiles.ResolvConf, own.Resolv())
}

// write replaces the text of a file of /etc, if the root has the file.
func (s *Shown) write(file, text string) error {
	place, ok := s.etc[file]
	if !ok {
		return nil
	}
	f, err := descriptor.OpenFile(int(s.skeleton.Fd()), place, descriptor.Beneath, unix.O_WRONLY|unix.O_TRUNC|unix.O_NOFOLLOW)
	if err != nil {
		return fmt.Errorf("/etc/%s: %w", file, err)
	}
	_, err = f.WriteString(text)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("/etc/%s: %w", file, err)
	}
	return nil
}

// Additions are binds and overlays, checked and ready to be attached once. The caller must close
// them.
type Additions struct {
	root  *Root
	all   []addition
	shown *Shown
}

// An addition is a source with the place of its mount point: missing directories below a held one.
type addition struct {
	target string
	src    *source
	node   *node  // in the plan of the additions
	area   string // the area in the store that has the mount point; empty: the skeleton
	below  []string
	make   []string
}

// Open checks the binds and overlays of a Config as [Open] does, for a sandbox whose user namespace has
// these maps. The error is [ErrNotAddable] if one of them cannot be added. Nothing changes yet.
func (s *Shown) Open(cfg Config, uids, gids []specs.LinuxIDMapping) (_ *Additions, err error) {
	p, err := emptyPlan(&cfg)
	if err != nil {
		return nil, err
	}
	if cfg.HostMounts != nil {
		if p.mounted.all, err = cfg.HostMounts.Mounts(); err != nil {
			return nil, err
		}
	}
	a := &Additions{root: &Root{plan: p, ids: userns.IDsOf(cfg.IDBase, cfg.User.owner(), userns.FromOCI(uids, gids))}, shown: s}
	defer func() {
		if err != nil {
			a.Close()
		}
	}()
	named, err := p.sources.openAll(&cfg, func(*source) {})
	if err != nil {
		return nil, err
	}
	for _, t := range named {
		if t.src.overlay != nil && t.src.real != t.target {
			return nil, fmt.Errorf("%s can need a second place, %s: %w", t.target, t.src.real, ErrNotAddable)
		}
		if err := a.place(p, t); err != nil {
			return nil, err
		}
	}
	if err := p.hidePaths(); err != nil {
		return nil, err
	}
	for _, add := range a.all {
		if len(add.node.children) > 0 { // secrets to hide, or file systems mounted below
			return nil, fmt.Errorf("%s has parts of its own mounts: %w", add.target, ErrNotAddable)
		}
	}
	a.root.trees = p.number()
	return a, a.takeTrees()
}

// place finds the mount point of a target, and notes the source in the plan of the additions.
func (a *Additions) place(p *plan, t target) error {
	if err := targetAllowed(t.target); err != nil {
		return err
	}
	add := addition{target: t.target, src: t.src}
	if t.same || path.Clean(t.target) != t.target || !add.find(a.shown.root) {
		return fmt.Errorf("%s: %w", t.target, ErrNotAddable)
	}
	for _, other := range a.all {
		if hostpaths.Within(other.target, t.target) || hostpaths.Within(t.target, other.target) {
			return fmt.Errorf("%s lies in %s: %w", t.target, other.target, ErrNotAddable)
		}
	}
	add.node = &node{kind: bindNode, src: t.src, named: true}
	a.all = append(a.all, add)
	p.root.putBelow(t.target[1:], add.node, newDir)
	if t.src.overlay == nil {
		return nil
	}
	return p.placeSubmounts(add.node, t.target)
}

// find finds the directory of the sandbox's own that has, or will have, the mount point. It returns
// false if there is none: the place exists, or lies in a tree of the host.
func (a *addition) find(root *node) bool {
	n, names := root, split(a.target)
	for i, name := range names {
		if n.covered || n.merged || n.kind != dirNode && n.kind != areaNode {
			return false
		}
		if n.kind == areaNode {
			a.area, a.below = n.text, nil
		}
		child := n.children[name]
		if child == nil {
			a.make = names[i:]
			return true
		}
		a.below = append(slices.Clone(a.below), name)
		n = child
	}
	return false
}

// takeTrees makes the detached mounts. The maps of the sandbox's ids can change no more.
func (a *Additions) takeTrees() error {
	for _, add := range a.all {
		s := add.src
		var err error
		if s.writable || s.overlay != nil && s.shown == asUser {
			if err = a.root.takeLate(s, &a.shown.spaces); err != nil {
				err = fmt.Errorf("%w: %w", ErrNotAddable, err)
			}
		} else {
			err = a.root.takeReadOnly(s, &a.shown.spaces)
		}
		if err != nil {
			return err
		}
		s.closePath()
	}
	return nil
}

// Trees are the overlaid trees, by path.
func (a *Additions) Trees() []Tree { return a.root.Trees() }

// Notes are the fallbacks that were taken, a sentence each.
func (a *Additions) Notes() []string { return a.root.Notes() }

// Close releases all that was not attached. It is safe to call on nil, and twice.
func (a *Additions) Close() {
	if a != nil {
		a.root.plan.close()
	}
}

// Mount makes the mount points and attaches the sources there. store is the store of the sandbox; uids
// and gids are its maps. attach attaches a detached mount at a path of the sandbox. The error
// is [ErrDetachedOverlay] if this kernel cannot make the overlays.
func (a *Additions) Mount(store *os.File, uids, gids []specs.LinuxIDMapping, attach func(tree *os.File, target string) error) error {
	b := builder{ids: userns.FromOCI(uids, gids), base: int(a.shown.skeleton.Fd()), store: int(store.Fd())}
	for _, add := range a.all {
		if err := add.mount(&b, attach); err != nil {
			return fmt.Errorf("%s: %w", add.target, err)
		}
	}
	return nil
}

func (a *addition) mount(b *builder, attach func(*os.File, string) error) error {
	if err := a.makePoint(b); err != nil {
		return err
	}
	tree := os.NewFile(uintptr(a.src.tree), a.src.path)
	a.src.tree = -1
	defer func() { tree.Close() }()
	if a.src.overlay != nil {
		mount, err := a.overlay(b, tree)
		if err != nil {
			return err
		}
		tree.Close()
		tree = mount
	}
	return attach(tree, a.target)
}

// makePoint makes the mount point, and the directories above it.
func (a *addition) makePoint(b *builder) error {
	top, below := b.base, append([]string{"root"}, a.below...)
	if a.area != "" {
		top, below = b.store, append([]string{"area", a.area}, a.below...)
	}
	at, err := openBeneath(top, path.Join(below...))
	if err != nil {
		return fmt.Errorf("open the directory of the mount point: %w", err)
	}
	for _, name := range a.make[:len(a.make)-1] {
		err := b.directory(at, name, newDir())
		if errors.Is(err, unix.EEXIST) { // made for another addition
			err = nil
		}
		next := -1
		if err == nil {
			next, err = openBeneath(at, name)
		}
		descriptor.CloseFD(at)
		if err != nil {
			return fmt.Errorf("make the mount point: %w", err)
		}
		at = next
	}
	defer descriptor.CloseFD(at)
	if err := makePoint(at, a.make[len(a.make)-1], a.src.dir); err != nil {
		return fmt.Errorf("make the mount point: %w", err)
	}
	return nil
}

// overlay mounts an overlay over the tree. Nothing else is mounted below it.
func (a *addition) overlay(b *builder, tree *os.File) (*os.File, error) {
	dir, err := makeBelow(b.store, "layer/"+strconv.Itoa(a.src.overlay.layer))
	if err != nil {
		return nil, err
	}
	layer := os.NewFile(uintptr(dir), "layer")
	defer layer.Close()
	upper, work, err := MakeLayer(layer, tree)
	if err != nil {
		return nil, err
	}
	defer descriptor.Close(upper, work)
	return Overlay{Lower: []*os.File{tree}, Upper: upper, Work: work, Renames: true}.Mount()
}
