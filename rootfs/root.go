package rootfs

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/conffiles"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/stamps"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/userns"
)

// Root is a sandbox's root, checked and ready to be mounted once. It holds a descriptor
// for each tree that will be attached, detached mounts included, so later changes of the
// paths do not change the mounts. One goroutine at a time uses it.
type Root struct {
	plan   *plan
	ids    userns.IDs
	store  *os.File
	users  *os.File // the user namespace
	trees  []Tree
	notes  []string
	shown  *Shown // of a mounted root that keeps stamps
	stamps stamps.Stamps

	cgroups []Cgroup
}

// Stamps is [stamps.Stamps].
type Stamps = stamps.Stamps

// HostMounts is [stamps.HostMounts].
type HostMounts = stamps.HostMounts

// Open validates a Config and prepares the root. It needs CAP_SYS_ADMIN, and takes sources
// from the mount namespace of the calling thread. Close releases all that it holds in the
// kernel. A source that must not be shown is a *ForbiddenError; a missing one is an error
// that is fs.ErrNotExist.
func Open(cfg Config) (*Root, error) {
	r := &Root{ids: userns.IDs{Base: cfg.IDBase, User: cfg.User.owner()}, store: cfg.Store, cgroups: cfg.Cgroups}
	spaces := userns.Namespaces{Owner: cfg.IDBase}
	defer spaces.Close()
	spaces.Start(r.ids.Map())
	p, err := newPlan(cfg, func(s *source) {
		if s.shown != asNobody {
			spaces.Start(mapFor(r.ids, s))
		}
	})
	if err != nil {
		return nil, err
	}
	r.plan, r.trees = p, p.number()
	if p.sources.stamps != nil {
		r.stamps, err = p.sources.stamps.Stamps(cfg.HostMounts)
	}
	if err == nil {
		err = r.takeTrees(&spaces)
	}
	if err == nil && cfg.StoreMapped {
		err = r.mapStore(&spaces)
	}
	if err == nil {
		r.users, err = spaces.File(r.ids.Map())
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Close releases all descriptors. It does not unmount. It is safe to call twice.
func (r *Root) Close() error {
	r.plan.close()
	r.plan.root = nil
	if r.users == nil {
		return nil
	}
	users := r.users
	r.users = nil
	return users.Close()
}

// TakeUserNamespace hands over the sandbox's user namespace, which has the maps of
// UIDMappings and GIDMappings and belongs to the host's id IDBase. The caller closes
// it. It is nil after the first call, after Mount and after Close.
func (r *Root) TakeUserNamespace() *os.File {
	users := r.users
	r.users = nil
	return users
}

// Stamps returns the stamps of a root whose Config has HostMounts.
func (r *Root) Stamps() Stamps { return r.stamps }

// Notes are the fallbacks that were taken, a sentence each.
func (r *Root) Notes() []string { return slices.Clone(r.notes) }

// UIDMappings and GIDMappings are the id maps the sandbox's user namespace must
// have. They are the sandbox's range, unless the workspace cannot be idmapped:
// then its owner takes the place of the sandbox's user.
func (r *Root) UIDMappings() []specs.LinuxIDMapping { return userns.OCI(r.ids.Map().UIDs) }

// GIDMappings are like UIDMappings, for groups.
func (r *Root) GIDMappings() []specs.LinuxIDMapping { return userns.OCI(r.ids.Map().GIDs) }

// emptyPlan checks the configuration, and makes a plan with nothing in it yet.
func emptyPlan(cfg *Config) (*plan, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	r, err := hostpaths.NewRules(cfg.Private, cfg.WorkspaceRoots)
	if err == nil && len(cfg.Overlays) > 0 {
		err = r.HideSecrets(cfg.Home)
	}
	if err != nil {
		return nil, err
	}
	p := &plan{
		root: newDir(), sources: sources{rules: r, files: cfg.Files, peer: cfg.Peer}, user: cfg.User,
		packages: cfg.Packages, copies: cfg.Copies, began: time.Now(),
	}
	if p.packages == nil {
		p.packages = &conffiles.Reader{}
	}
	return p, nil
}

// newPlan checks a Config and lays out the root. It calls opened for each source
// that will need a namespace, as soon as that is known.
func newPlan(cfg Config, opened func(*source)) (_ *plan, err error) {
	p, err := emptyPlan(&cfg)
	if err != nil {
		return nil, err
	}
	if cfg.HostMounts != nil {
		p.sources.stamps = &stamps.Collector{}
	}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	named, err := p.sources.openAll(&cfg, opened)
	if err != nil {
		return nil, err
	}
	if err := p.layOutBase(&cfg, opened); err != nil {
		return nil, err
	}
	if err := p.reserveAll(&cfg); err != nil {
		return nil, err
	}
	if err := p.placePrefixes(&cfg); err != nil {
		return nil, err
	}
	for _, t := range named {
		if err := p.placeNamed(t); err != nil {
			return nil, err
		}
	}
	if err := p.reserveAll(&cfg); err != nil {
		return nil, err
	}
	if err := p.placeAliases(named); err != nil {
		return nil, err
	}
	if err := p.placeApt(); err != nil {
		return nil, err
	}
	return p, p.hidePaths()
}

// placePrefixes shows the language prefixes, if they are not shown already.
func (p *plan) placePrefixes(cfg *Config) error {
	if slices.Contains(cfg.Overlays, "/") {
		return nil
	}
	for _, prefix := range cfg.Prefixes {
		s, err := p.sources.openPrefix(prefix)
		if err != nil {
			return fmt.Errorf("language prefix %w", err)
		}
		p.viewOf(s).show(s)
		if err := p.place(s.path, &node{kind: bindNode, src: s}); err != nil {
			return fmt.Errorf("language prefix: %w", err)
		}
	}
	return nil
}

// placeNamed attaches a source that the user named.
func (p *plan) placeNamed(t target) error {
	switch {
	case t.same:
		n, err := p.overlayAt(target{target: t.src.path, src: t.src})
		if err != nil {
			return err
		}
		return p.place(t.target, &node{kind: sameNode, src: t.src, same: n, named: true})
	case t.src.overlay != nil:
		return p.placeOverlay(t)
	}
	return p.place(t.target, &node{kind: bindNode, src: t.src, named: true})
}

// layOutBase lays out the root below the binds.
func (p *plan) layOutBase(cfg *Config, opened func(*source)) error {
	if slices.Contains(cfg.Overlays, "/") {
		return p.wholeRoot(opened)
	}
	if cfg.Image != nil {
		opened(&source{shown: asOnDisk})
		return p.imageRoot(cfg)
	}
	if cfg.Dir == "" {
		return p.hostRoot(cfg)
	}
	if cfg.Peer == nil { // whose directory it is decides otherwise
		opened(&source{shown: asOnDisk})
	}
	return p.dirRoot(cfg.Dir)
}

func (p *plan) reserveAll(cfg *Config) error {
	for _, point := range slices.Concat(hostpaths.Reserved, cfg.MountPoints) {
		if err := p.reserve(point); err != nil {
			return err
		}
	}
	for _, a := range cfg.Areas {
		if err := p.placeArea(a); err != nil {
			return err
		}
	}
	return nil
}

// target is a named source and where it goes.
type target struct {
	target string
	src    *source
	same   bool // src is an overlay that has its place elsewhere
}

// openAll opens the overlays, the workspace and the binds, in the order in which
// they are placed: those nearest to the root first.
func (ss *sources) openAll(cfg *Config, opened func(*source)) ([]target, error) {
	out, err := ss.openOverlays(cfg, opened)
	if err != nil {
		return nil, err
	}
	var both *source // an overlay that is the workspace, too
	if i := slices.IndexFunc(out, func(t target) bool { return t.target == cfg.Workspace }); i >= 0 {
		both = out[i].src
		out = append(out, target{WorkspaceTarget, both, true})
	} else if cfg.Workspace != "" {
		s, err := ss.openNamed(ss.rules, cfg.Workspace, true, asUser)
		if err != nil {
			return nil, fmt.Errorf("workspace %w", err)
		}
		if !s.dir {
			return nil, fmt.Errorf("workspace %s is not a directory", s.path)
		}
		opened(s)
		out = append(out, target{target: WorkspaceTarget, src: s})
	}
	binding := *ss.rules
	binding.Sockets = true
	for _, b := range cfg.Binds {
		s, err := ss.openNamed(&binding, b.Source, b.Writable, asUser)
		if err != nil {
			return nil, fmt.Errorf("bind %w", err)
		}
		opened(s)
		out = append(out, target{target: b.Target, src: s})
	}
	depth := func(t target) int {
		if t.src == both {
			return 0 // there before all that goes below the workspace
		}
		return strings.Count(t.target, "/")
	}
	slices.SortStableFunc(out, func(a, b target) int { return cmp.Compare(depth(a), depth(b)) })
	return out, nil
}
