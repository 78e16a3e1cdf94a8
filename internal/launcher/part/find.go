package part

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
)

// Directories returns the ids of the sandboxes with a directory in the state root.
//
// The state root names PID 1 and the cgroups of each sandbox. A launcher of root kills and
// freezes these. So the owner and the mode of the state root are checked first, here and in each search.
func (p *Parts) Directories() ([]string, error) {
	if err := p.CheckRoot(); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(p.Sandboxes())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		if e.IsDir() {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// KnownIDs returns the ids of all sandboxes with a trace: in the state root, or, if somebody has
// emptied the state root, in the kernel and below the data directory.
func (p *Parts) KnownIDs() ([]string, error) {
	ids, err := p.Directories()
	if err != nil {
		return nil, err
	}
	traces, err := p.traces()
	if err != nil {
		return nil, err
	}
	ids = append(ids, traces...)
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// Traced says whether objects of a sandbox are left outside the state root. They can be left
// without a directory, such as after somebody has emptied the state root.
func (p *Parts) Traced(id string) (bool, error) {
	if err := p.CheckRoot(); err != nil {
		return false, err
	}
	traces, err := p.traces()
	return slices.Contains(traces, id), err
}

// traces returns the ids of the sandboxes that have an object of some kind, without the old ids of sandboxes that have
// another id now.
func (p *Parts) traces() (ids []string, err error) {
	for _, k := range p.kinds {
		found, err := k.find()
		if err != nil {
			return nil, err
		}
		ids = append(ids, found...)
	}
	moved, err := p.MovedIDs()
	return slices.DeleteFunc(ids, func(id string) bool { return moved[id] != "" }), err
}

// madeIDs returns the ids in the names of cgroups or images.
func (p *Parts) madeIDs(names []string) (ids []string) {
	for _, name := range names {
		if id, ours := p.CgroupID(name); ours {
			ids = append(ids, id)
		}
	}
	return ids
}

// Group opens the cgroup of a sandbox.
func (p *Parts) Group(id string) (*cgroups.Group, error) {
	host, err := p.Host()
	if err != nil {
		return nil, err
	}
	names, _, err := p.names(host, id)
	if err != nil {
		return nil, err
	}
	return host.Open(names.CgroupPath())
}

// names returns the names of a sandbox's objects. Without a file of names either the directory was lost, or an earlier
// release has made the sandbox. moved says that another sandbox has the objects with these names.
func (p *Parts) names(host *cgroups.Host, id string) (names record.Names, moved bool, err error) {
	names, known, err := p.NamesOf(id)
	if known || err != nil {
		return names, false, err
	}
	others, err := p.MovedIDs()
	if err != nil || others[id] != "" {
		return names, true, err
	}
	all, err := host.Children(record.CgroupParent)
	if err != nil {
		return names, false, err
	}
	for _, name := range all {
		if made, ours := p.CgroupID(name); ours && made == id {
			names.Cgroup = name
		}
	}
	return names, false, nil
}

// MovedIDs returns the present ids of the sandboxes that have changed their id, by their first ids.
func (p *Parts) MovedIDs() (map[string]string, error) {
	ids, err := p.Directories()
	if err != nil {
		return nil, err
	}
	moved := map[string]string{}
	for _, id := range ids {
		// A sandbox without readable names can only be removed, and the removal looks for its
		// objects by this id.
		if names, _, err := p.NamesOf(id); err == nil && names.Made != id {
			moved[names.Made] = id
		}
	}
	return moved, nil
}

// dropDamagedNames removes a file of names that cannot be read or that names objects of others.
// Without this file the removal looks for the sandbox's objects by its id.
func (p *Parts) dropDamagedNames(id, dir string) error {
	if _, _, err := p.NamesOf(id); err == nil {
		return nil
	}
	return os.Remove(filepath.Join(dir, record.NamesFile))
}
