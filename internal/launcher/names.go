package launcher

import (
	"os"
	"path/filepath"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
)

// lostNames are the names of a sandbox without a file of names: its directory was lost, or
// an earlier release has made the sandbox.
func (l *Launcher) lostNames(host *cgroups.Host, id string) (record.Names, error) {
	names := record.Names{Made: id, Cgroup: l.CgroupPrefix() + id}
	moved, err := l.moved()
	if err != nil || moved[id] != "" {
		return names, err
	}
	all, err := host.Children(record.CgroupParent)
	if err != nil {
		return names, err
	}
	for _, name := range all {
		if made, ours := l.CgroupID(name); ours && made == id {
			names.Cgroup = name
		}
	}
	return names, nil
}

// dropDamagedNames removes a file of names that cannot be read or names objects of others.
// The sandbox's objects are then looked for by its id, as without a file. The caller removes
// the sandbox and must hold its directory, dir.
func (l *Launcher) dropDamagedNames(id, dir string) error {
	if _, _, err := l.NamesOf(id); err == nil {
		return nil
	}
	return os.Remove(filepath.Join(dir, record.NamesFile))
}

// moved are the present ids of the sandboxes that have got another id, by the ids with which
// they were made.
func (l *Launcher) moved() (map[string]string, error) {
	ids, err := l.directories()
	if err != nil {
		return nil, err
	}
	moved := map[string]string{}
	for _, id := range ids {
		// Without readable names the sandbox cannot be used or removed under this id, and
		// its objects are not found under another.
		if names, _, err := l.NamesOf(id); err == nil && names.Made != id {
			moved[names.Made] = id
		}
	}
	return moved, nil
}
