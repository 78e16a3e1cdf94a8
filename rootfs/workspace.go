package rootfs

import (
	"errors"
	"fmt"
	"os"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/userns"
)

// OpenWorkspace checks the workspace of a Config as [Open] does and returns its
// tree alone: a detached mount, for a sandbox that is up already and whose user
// namespace has these maps. The caller attaches and closes it. Nothing else of the
// Config is looked at.
func OpenWorkspace(cfg Config, uids, gids []specs.LinuxIDMapping) (*os.File, error) {
	var spaces userns.Namespaces
	defer spaces.Close()
	return openWorkspace(cfg, uids, gids, &spaces)
}

// OpenWorkspace is [OpenWorkspace] for a sandbox in which no command has run.
func (s *Shown) OpenWorkspace(cfg Config, uids, gids []specs.LinuxIDMapping) (*os.File, error) {
	return openWorkspace(cfg, uids, gids, &s.spaces)
}

func openWorkspace(cfg Config, uids, gids []specs.LinuxIDMapping, spaces *userns.Namespaces) (*os.File, error) {
	p, err := emptyPlan(&cfg)
	if err != nil {
		return nil, err
	}
	defer p.close()
	s, err := p.openNamed(p.rules, cfg.Workspace, true, asUser)
	if err == nil && !s.dir {
		err = fmt.Errorf("%s is not a directory", s.path)
	}
	if err != nil {
		return nil, fmt.Errorf("workspace %w", err)
	}
	r := &Root{plan: p, ids: idsOf(&cfg, uids, gids)}
	if err := r.takeLate(s, spaces); err != nil {
		return nil, err
	}
	tree := os.NewFile(uintptr(s.tree), s.path)
	s.tree = -1
	return tree, nil
}

// idsOf are the ids of a sandbox whose user namespace has these maps. The maps can lead the user of the sandbox to a user
// of the host.
func idsOf(cfg *Config, uids, gids []specs.LinuxIDMapping) ids {
	i := ids{base: cfg.IDBase, user: cfg.User}
	host := owner{uint32(hostID(sysMappings(uids), i.user.UID)), uint32(hostID(sysMappings(gids), i.user.GID))}
	if host != i.host() {
		i.direct = &host
	}
	return i
}

// takeLate takes a writable source's tree once the id maps can change no more.
func (r *Root) takeLate(s *source, spaces *userns.Namespaces) error {
	err := r.idmap(s, spaces)
	if err == nil || !unsupported(err) {
		return err
	}
	m, tableErr := r.plan.mounted.checkedMountsOf(s)
	if tableErr != nil {
		return tableErr
	}
	if r.ids.direct == nil || *r.ids.direct != (owner{s.uid, s.gid}) {
		return errors.Join(fmt.Errorf("workspace %s is on %s, which cannot be idmapped, and the user of a sandbox that is up cannot change: make the sandbox with this workspace",
			s.path, m.fsType), err)
	}
	return s.clone(-1, true)
}
