package launcher

import (
	"errors"
	"io/fs"
	"os"
	"slices"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/idrange"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
)

// A finder finds sandboxes: by their directories in the state root, or, if somebody has
// emptied the state root, by their objects in the kernel and below the data directory.
//
// The state root names PID 1 and the cgroups of each sandbox. A launcher of root kills and
// freezes these. So the finder checks the owner and the mode of the state root first.
type finder struct {
	record.Roots
	host func() (*cgroups.Host, error)
	ids  idrange.Ranges
}

// directories are the ids of the sandboxes with a directory in the state root.
func (f finder) directories() ([]string, error) {
	if err := f.CheckRoot(); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(f.Sandboxes())
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

// knownIDs returns the ids of all sandboxes with a trace: in the state root, or, if somebody has
// emptied the state root, in the kernel and below the data directory.
func (f finder) knownIDs() ([]string, error) {
	ids, err := f.directories()
	if err != nil {
		return nil, err
	}
	traces, err := f.traces()
	if err != nil {
		return nil, err
	}
	ids = append(ids, traces...)
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// traced says whether objects of a sandbox are left outside the state root. They can be left
// without a directory, such as after somebody has emptied the state root.
func (f finder) traced(id string) (bool, error) {
	if err := f.CheckRoot(); err != nil {
		return false, err
	}
	traces, err := f.traces()
	return slices.Contains(traces, id), err
}

// traces returns the ids of the sandboxes that have a cgroup, an image or a range of user ids,
// without the old ids of sandboxes that have another id now.
func (f finder) traces() ([]string, error) {
	host, err := f.host()
	if err != nil {
		return nil, err
	}
	groups, err := host.Children(record.CgroupParent)
	if err != nil {
		return nil, err
	}
	images, err := f.Images()
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, name := range slices.Concat(groups, images) {
		if id, ours := f.CgroupID(name); ours {
			ids = append(ids, id)
		}
	}
	owners, err := f.ids.Owners()
	if err != nil {
		return nil, err
	}
	for _, o := range owners {
		ids = append(ids, o.Sandbox)
	}
	moved, err := f.movedIDs()
	return slices.DeleteFunc(ids, func(id string) bool { return moved[id] != "" }), err
}

// group is the cgroup of a sandbox.
func (f finder) group(id string) (*cgroups.Group, error) {
	host, err := f.host()
	if err != nil {
		return nil, err
	}
	names, known, err := f.NamesOf(id)
	if err != nil {
		return nil, err
	}
	if !known {
		if names, err = f.lostNames(host, id); err != nil {
			return nil, err
		}
	}
	return host.Open(names.CgroupPath())
}

// lostNames returns the names of a sandbox without a file of names. Either the directory was lost
// or an earlier release has made the sandbox.
func (f finder) lostNames(host *cgroups.Host, id string) (record.Names, error) {
	names := record.Names{Made: id, Cgroup: f.CgroupPrefix() + id}
	moved, err := f.movedIDs()
	if err != nil || moved[id] != "" {
		return names, err
	}
	all, err := host.Children(record.CgroupParent)
	if err != nil {
		return names, err
	}
	for _, name := range all {
		if made, ours := f.CgroupID(name); ours && made == id {
			names.Cgroup = name
		}
	}
	return names, nil
}

// movedIDs returns the present ids of the sandboxes that have changed their id, by their first ids.
func (f finder) movedIDs() (map[string]string, error) {
	ids, err := f.directories()
	if err != nil {
		return nil, err
	}
	moved := map[string]string{}
	for _, id := range ids {
		// A sandbox without readable names can only be removed, and the removal looks for its
		// objects by this id.
		if names, _, err := f.NamesOf(id); err == nil && names.Made != id {
			moved[names.Made] = id
		}
	}
	return moved, nil
}
