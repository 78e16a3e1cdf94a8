package cgroups

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// A View shows processes inside one group of one hierarchy: a detached mount with the group and
// the groups below it, and no other group. Nothing can be written through the mount.
type View struct {
	Name  string   // the directory below /sys/fs/cgroup; v2: empty, the view is /sys/fs/cgroup itself
	Links []string // v1: other names of the directory, if several controllers are mounted together
	Mount *os.File
}

// shownControllers are the v1 controllers whose files language runtimes read. The JVM reads
// no limit at all if one of these is missing.
func shownControllers() []string { return []string{"memory", "cpu", "cpuacct", "cpuset"} }

// Views makes the group, below a parent that EnsureParent has made, and returns its views: on
// v1 one for each hierarchy with one of the controllers memory, cpu, cpuacct and cpuset. A
// controller that the host lacks has no view. The caller must close the mounts.
//
// mount_setattr(2), Linux 5.12.
func (g *Group) Views() ([]View, error) {
	all, err := g.views()
	if err != nil {
		CloseViews(all)
		return nil, g.failed("show", err)
	}
	return all, nil
}

// CloseViews closes the mounts of views.
func CloseViews(all []View) {
	for _, v := range all {
		v.Mount.Close()
	}
}

func (g *Group) views() (all []View, err error) {
	for _, t := range g.host.visibleTrees() {
		mount, err := t.detach(g.path)
		if err != nil {
			return all, err
		}
		v := View{Mount: mount}
		if !t.v2 {
			v.Name = filepath.Base(t.dir)
			v.Links = slices.DeleteFunc(slices.Clone(t.controllers), func(name string) bool { return name == v.Name })
		}
		all = append(all, v)
	}
	return all, nil
}

// visibleTrees are the hierarchies with limits that a sandbox sees.
func (h *Host) visibleTrees() (trees []tree) {
	if h.Mode == V2 {
		return h.trees
	}
	for _, controller := range shownControllers() {
		t, ok := h.v1(controller)
		if ok && !slices.ContainsFunc(trees, func(other tree) bool { return other.dir == t.dir }) {
			trees = append(trees, t)
		}
	}
	return trees
}

// detach makes a group and returns a read-only mount of the group. The mount is in no
// namespace yet.
func (t tree) detach(group string) (*os.File, error) {
	parent, err := t.open(filepath.Dir(group))
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	name := filepath.Base(group)
	err = change(parent, "mkdir", name, func(fd int) error { return unix.Mkdirat(fd, name, 0o755) })
	if err = ignore(err, fs.ErrExist); err != nil {
		return nil, err
	}
	fd, err := call(parent, "open_tree", name, func(fd int) (int, error) {
		return unix.OpenTree(fd, name, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	})
	if err != nil {
		return nil, err
	}
	mount := os.NewFile(uintptr(fd), filepath.Join(parent.Name(), name))
	attributes := unix.MountAttr{
		Attr_set:    unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC,
		Propagation: unix.MS_PRIVATE,
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attributes); err != nil {
		return nil, errors.Join(&fs.PathError{Op: "mount_setattr", Path: mount.Name(), Err: err}, mount.Close())
	}
	return mount, nil
}
