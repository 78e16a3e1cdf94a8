package cgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// mountRoot is where cgroups are looked for, and the first place where
// libcontainer looks.
const mountRoot = "/sys/fs/cgroup"

// Mode says which of the two kernel interfaces holds a host's controllers.
type Mode string

// The ways in which hosts mount their cgroups.
const (
	V1     Mode = "v1"     // one hierarchy per controller
	Hybrid Mode = "hybrid" // v1, and a v2 hierarchy beside it at unified/
	V2     Mode = "v2"     // one v2 hierarchy for everything
)

// Controller is a resource controller and where its hierarchy is mounted.
type Controller struct {
	Name       string
	Mountpoint string
}

// Host is the calling process's view of the host's cgroups. Probe makes it. It holds no
// descriptor and is safe for concurrent use; its fields must not be written.
type Host struct {
	Mode        Mode
	Controllers []Controller // sorted by name
	Limits      Limits       // of any group at all; EnsureParent has the word on one parent's children

	root  string // where the hierarchies are mounted
	trees []tree
}

// Probe looks at the cgroup file systems under /sys/fs/cgroup. A missing
// controller or a hierarchy that cannot be written is no error but a reason
// in Limits; no cgroup file system at all is an error.
func Probe() (*Host, error) {
	return probe(mountRoot)
}

// probe is Probe for a mount root other than /sys/fs/cgroup.
func probe(root string) (*Host, error) {
	h := &Host{root: root}
	var err error
	switch magic, statErr := fsMagic(root); {
	case statErr != nil:
		return nil, fmt.Errorf("probe cgroups: %w", statErr)
	case magic == unix.CGROUP2_SUPER_MAGIC:
		h.Mode = V2
		err = h.addUnified(root)
	case magic == unix.CGROUP_SUPER_MAGIC:
		return nil, fmt.Errorf("probe cgroups: %s is itself a v1 hierarchy: mount each controller in a directory of its own below it", root)
	default:
		err = h.probeV1()
	}
	if err != nil {
		return nil, fmt.Errorf("probe cgroups: %w", err)
	}
	slices.SortFunc(h.Controllers, func(a, b Controller) int { return strings.Compare(a.Name, b.Name) })
	h.Limits = h.hostLimits()
	return h, nil
}

// probeV1 finds the hierarchies in the directories of h.root. Symbolic links
// there are second names of controllers mounted together (cpu → cpu,cpuacct).
func (h *Host) probeV1() error {
	entries, err := os.ReadDir(h.root)
	if err != nil {
		return err
	}
	h.Mode = V1
	for _, e := range entries {
		dir := filepath.Join(h.root, e.Name())
		if !e.IsDir() {
			continue
		}
		switch magic, err := fsMagic(dir); {
		case err != nil:
			return err
		case magic == unix.CGROUP_SUPER_MAGIC:
			// The library reaches each controller under its own name only.
			names := slices.DeleteFunc(strings.Split(e.Name(), ","), func(name string) bool {
				return !exists(filepath.Join(h.root, name))
			})
			h.trees = append(h.trees, tree{dir: dir, controllers: names})
			for _, name := range names {
				h.Controllers = append(h.Controllers, Controller{name, dir})
			}
		case magic == unix.CGROUP2_SUPER_MAGIC && e.Name() == "unified":
			h.Mode = Hybrid
			if err := h.addUnified(dir); err != nil {
				return err
			}
		}
	}
	if len(h.trees) == 0 {
		return fmt.Errorf("no cgroup file system at %s: mount one with mount -t cgroup2 none %[1]s", h.root)
	}
	return nil
}

// addUnified adds the v2 hierarchy at dir and the controllers it offers.
func (h *Host) addUnified(dir string) error {
	offered, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	t := tree{dir: dir, v2: true, controllers: strings.Fields(string(offered))}
	h.trees = append(h.trees, t)
	for _, name := range t.controllers {
		h.Controllers = append(h.Controllers, Controller{name, dir})
	}
	return nil
}

// v1 returns the v1 hierarchy that holds a controller.
func (h *Host) v1(controller string) (tree, bool) {
	return h.find(func(t tree) bool { return !t.v2 && slices.Contains(t.controllers, controller) })
}

// unified returns the v2 hierarchy: the only one in mode V2, the one at
// unified/ in mode Hybrid, none in mode V1.
func (h *Host) unified() (tree, bool) {
	return h.find(func(t tree) bool { return t.v2 })
}

func (h *Host) find(wanted func(tree) bool) (tree, bool) {
	i := slices.IndexFunc(h.trees, wanted)
	if i < 0 {
		return tree{}, false
	}
	return h.trees[i], true
}

// controllerTree returns the hierarchy where a controller's files are, if
// anywhere: with mode V2 any controller's are on the one hierarchy there is.
func (h *Host) controllerTree(controller string) (tree, bool) {
	if h.Mode == V2 {
		return h.unified()
	}
	return h.v1(controller)
}

// fsMagic returns the type of the file system at path, as in statfs(2).
func fsMagic(path string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	return int64(st.Type), nil //nolint:unconvert // Type is 32 bits wide on some architectures
}

// ErrNotWritable is the condition that the caller may not make groups here:
// an ordinary user's own rights, or a container's read-only mount.
var ErrNotWritable = errors.New("no writable cgroup")

// notWritable turns a refusal to write below the mount point dir into ErrNotWritable with
// the way out; other errors it returns as they are.
func notWritable(dir string, err error) error {
	var advice string
	switch {
	case errors.Is(err, unix.EROFS):
		advice = "mount it read-write (for a container: --privileged and a private cgroup namespace)"
	case !errors.Is(err, fs.ErrPermission):
		return err
	case os.Geteuid() != 0:
		advice = "run as root"
	default:
		advice = "root of this user namespace does not own it: run outside the container, or have the cgroup delegated"
	}
	return fmt.Errorf("%w: %s: %w: %s", ErrNotWritable, dir, err, advice)
}
