package rootfs

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/conffiles"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/userns"
)

// Root is a sandbox's root, checked and ready to be mounted once. It holds a descriptor
// for each tree that will be attached, detached mounts included, so later changes of the
// paths do not change the mounts. One goroutine at a time uses it.
type Root struct {
	plan  *plan
	ids   ids
	store *os.File
	users *os.File // the user namespace
	trees []Tree
	notes []string
	shown *Shown // of a mounted root that keeps stamps

	cgroups []Cgroup
}

// Open validates a Config and prepares the root. It needs CAP_SYS_ADMIN, and takes sources
// from the mount namespace of the calling thread. Close releases all that it holds in the
// kernel. A source that must not be shown is a *ForbiddenError; a missing one is an error
// that is fs.ErrNotExist.
func Open(cfg Config) (*Root, error) {
	r := &Root{ids: ids{base: cfg.IDBase, user: cfg.User}, store: cfg.Store, cgroups: cfg.Cgroups}
	spaces := userns.Namespaces{Owner: cfg.IDBase}
	defer spaces.Close()
	spaces.Start(r.ids.namespaceMap())
	p, err := newPlan(cfg, func(s *source) {
		if s.shown != asNobody {
			spaces.Start(r.ids.mapFor(s))
		}
	})
	if err != nil {
		return nil, err
	}
	r.plan, r.trees = p, p.number()
	if p.stamps != nil {
		err = p.stamps.noteMounts()
	}
	if err == nil {
		err = r.takeTrees(&spaces)
	}
	if err == nil && cfg.StoreMapped {
		err = r.mapStore(&spaces)
	}
	if err == nil {
		r.users, err = spaces.File(r.ids.namespaceMap())
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

// Notes are the fallbacks that were taken, a sentence each.
func (r *Root) Notes() []string { return slices.Clone(r.notes) }

// UIDMappings and GIDMappings are the id maps the sandbox's user namespace must
// have. They are the sandbox's range, unless the workspace cannot be idmapped:
// then its owner takes the place of the sandbox's user.
func (r *Root) UIDMappings() []specs.LinuxIDMapping { return ociMappings(r.ids.uids()) }

// GIDMappings are like UIDMappings, for groups.
func (r *Root) GIDMappings() []specs.LinuxIDMapping { return ociMappings(r.ids.gids()) }

func ociMappings(in []syscall.SysProcIDMap) []specs.LinuxIDMapping {
	out := make([]specs.LinuxIDMapping, 0, len(in))
	for _, m := range in {
		out = append(out, specs.LinuxIDMapping{
			ContainerID: uint32(m.ContainerID), HostID: uint32(m.HostID), Size: uint32(m.Size),
		})
	}
	return out
}

// emptyPlan checks the configuration, and makes a plan with nothing in it yet.
func emptyPlan(cfg *Config) (*plan, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	r, err := newRules(cfg)
	if err != nil {
		return nil, err
	}
	p := &plan{
		root: newDir(), rules: r, user: cfg.User, files: cfg.Files, peer: cfg.Peer,
		packages: cfg.Packages, copies: cfg.Copies, began: time.Now(),
	}
	if p.packages == nil {
		p.packages = &conffiles.Reader{}
	}
	if cfg.HostMounts != nil {
		p.stamps = &Stamps{host: cfg.HostMounts}
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
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	named, err := p.openAll(&cfg, opened)
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
		s, err := p.openPrefix(prefix)
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
	for _, point := range slices.Concat(reserved, cfg.MountPoints) {
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
func (p *plan) openAll(cfg *Config, opened func(*source)) ([]target, error) {
	out, err := p.openOverlays(cfg, opened)
	if err != nil {
		return nil, err
	}
	var both *source // an overlay that is the workspace, too
	if i := slices.IndexFunc(out, func(t target) bool { return t.target == cfg.Workspace }); i >= 0 {
		both = out[i].src
		out = append(out, target{WorkspaceTarget, both, true})
	} else if cfg.Workspace != "" {
		s, err := p.openNamed(p.rules, cfg.Workspace, true, asUser)
		if err != nil {
			return nil, fmt.Errorf("workspace %w", err)
		}
		if !s.dir {
			return nil, fmt.Errorf("workspace %s is not a directory", s.path)
		}
		opened(s)
		out = append(out, target{target: WorkspaceTarget, src: s})
	}
	binding := *p.rules
	binding.sockets = true
	for _, b := range cfg.Binds {
		s, err := p.openNamed(&binding, b.Source, b.Writable, asUser)
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
