package rootfs

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Root is a sandbox's root, checked and ready to be mounted once. It holds a
// descriptor for each tree that will be attached, detached mounts included, so
// nothing that happens to the paths later changes what is mounted. It is used by
// one goroutine at a time.
type Root struct {
	plan    *plan
	ids     ids
	mounted mountTable
	notes   []string
}

// Open validates a Config and prepares the root: it needs CAP_SYS_ADMIN, and the
// mount namespace of the calling thread is the one sources are taken from. What
// it holds in the kernel ends with Close. A source that must not be shown gives a
// *ForbiddenError; one that is not there an error that is fs.ErrNotExist.
func Open(cfg Config) (*Root, error) {
	r := &Root{ids: ids{base: cfg.IDBase, user: cfg.User}}
	var spaces namespaces
	defer spaces.close()
	p, err := newPlan(cfg, func(s *source) { spaces.start(r.ids.mapFor(s)) })
	if err != nil {
		return nil, err
	}
	r.plan = p
	if err := r.takeTrees(&spaces); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Close gives up what is held. It does not unmount. It is safe to call twice.
func (r *Root) Close() error {
	r.plan.close()
	r.plan.root = nil
	return nil
}

// Notes are the fallbacks that were taken, a sentence each.
func (r *Root) Notes() []string { return slices.Clone(r.notes) }

// UIDMappings and GIDMappings are the id maps the sandbox's user namespace must
// have. They are the sandbox's range, unless the workspace cannot be idmapped:
// then its owner takes the place of the sandbox's user.
func (r *Root) UIDMappings() []specs.LinuxIDMapping { return ociMappings(r.ids.uids()) }

// GIDMappings is to groups what UIDMappings is to users.
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

// newPlan checks a Config and lays out the root. It calls opened for each source
// that will need a namespace, as soon as that is known.
func newPlan(cfg Config, opened func(*source)) (_ *plan, err error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	r, err := newRules(&cfg)
	if err != nil {
		return nil, err
	}
	p := &plan{root: newDir(), rules: r, user: cfg.User}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	binds, err := p.openBinds(&cfg, opened)
	if err != nil {
		return nil, err
	}
	if err := p.base(&cfg, opened); err != nil {
		return nil, err
	}
	points := slices.Concat(reserved, cfg.MountPoints)
	if err := p.reserveAll(points); err != nil {
		return nil, err
	}
	for _, prefix := range cfg.Prefixes {
		s, err := p.open(prefix, false, asNobody)
		if err != nil {
			return nil, fmt.Errorf("language prefix %w", err)
		}
		if err := p.place(s.path, &node{kind: bindNode, src: s}); err != nil {
			return nil, fmt.Errorf("language prefix: %w", err)
		}
	}
	for _, b := range binds {
		if err := p.place(b.target, &node{kind: bindNode, src: b.src, named: true}); err != nil {
			return nil, err
		}
	}
	return p, p.reserveAll(points)
}

// base lays out what the binds come on top of.
func (p *plan) base(cfg *Config, opened func(*source)) error {
	if cfg.Dir == "" {
		return p.hostRoot(cfg)
	}
	opened(&source{shown: asOnDisk})
	return p.dirRoot(cfg.Dir)
}

func (p *plan) reserveAll(points []string) error {
	for _, point := range points {
		if err := p.reserve(point); err != nil {
			return err
		}
	}
	return nil
}

// target is a named source and where it goes.
type target struct {
	target string
	src    *source
}

// openBinds opens the workspace and the binds, those nearest to the root first.
func (p *plan) openBinds(cfg *Config, opened func(*source)) ([]target, error) {
	var out []target
	if cfg.Workspace != "" {
		s, err := p.open(cfg.Workspace, true, asUser)
		if err != nil {
			return nil, fmt.Errorf("workspace %w", err)
		}
		if !s.dir {
			return nil, fmt.Errorf("workspace %s is no directory", s.path)
		}
		opened(s)
		out = append(out, target{WorkspaceTarget, s})
	}
	for _, b := range cfg.Binds {
		s, err := p.open(b.Source, b.Writable, asUser)
		if err != nil {
			return nil, fmt.Errorf("bind %w", err)
		}
		opened(s)
		out = append(out, target{b.Target, s})
	}
	slices.SortStableFunc(out, func(a, b target) int {
		return cmp.Compare(strings.Count(a.target, "/"), strings.Count(b.target, "/"))
	})
	return out, nil
}
