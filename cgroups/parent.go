package cgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// useHierarchy has the memory of nested groups counted in the group at path.
// Linux 5.11 and later always do (cgroup-v1/memory.rst, "Hierarchy support").
func useHierarchy(t tree, path string) error {
	dir, err := t.open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	value, err := readFile(dir, "memory.use_hierarchy")
	if isGone(err) || err == nil && strings.TrimSpace(value) != "0" {
		return nil
	}
	if err != nil {
		return err
	}
	return writeFile(dir, "memory.use_hierarchy", "1")
}

func (h *Host) ensureV2(group string) (Limits, error) {
	t, _ := h.unified()
	if err := os.MkdirAll(t.path(group), 0o755); err != nil {
		return Limits{}, notWritable(t.dir, err)
	}
	refused, err := t.enable(group, "cpu", "memory", "pids", "io")
	if err != nil {
		return Limits{}, err
	}
	return h.parentLimits(group, refused), nil
}

// enable enables controllers for the children of group, from the root down
// (cgroup-v2.rst, "Enabling and Disabling": a group has a controller only if
// its parent enables it). One at a time, because the kernel refuses a list as
// a whole; the refusals are returned by controller. Controllers that the root
// does not offer are passed over.
func (t tree) enable(group string, controllers ...string) (refused map[string]error, err error) {
	refused = map[string]error{}
	for _, c := range controllers {
		if !slices.Contains(t.controllers, c) || t.enabled(group, c) {
			continue
		}
		for i, b := range []byte(group + "/") {
			if b != '/' {
				continue
			}
			err := t.enableIn(path.Clean("/"+group[:i]), c)
			if errors.Is(err, errPopulated) {
				return nil, err
			}
			if err != nil {
				refused[c] = err
				break
			}
		}
	}
	return refused, nil
}

// enabled tells whether the children of a group have a controller.
func (t tree) enabled(group, controller string) bool {
	list, err := os.ReadFile(t.path(group) + "/cgroup.subtree_control")
	return err == nil && slices.Contains(strings.Fields(string(list)), controller)
}

// errPopulated is the condition that no group below can hold a process, with any limits.
var errPopulated = errors.New("processes live in it, so it cannot have children with controllers: move them into a child group")

// enableIn enables a controller for the children of one group. If it is enabled, nothing
// is written: a caller may lack the right to write.
//
// A group with processes, unless it is the root of all, gets no controllers enabled: the
// kernel refuses memory and io (cgroup-v2.rst, "No Internal Process Constraint"), and cpu
// or pids would make all its children "domain invalid" ("Threads"), useless also to
// callers without limits.
func (t tree) enableIn(group, controller string) error {
	if t.enabled(group, controller) {
		return nil
	}
	dir, err := t.open(group)
	if err != nil {
		return err
	}
	defer dir.Close()
	procs, err := readFile(dir, "cgroup.procs")
	if err != nil {
		return err
	}
	if procs != "" && exists(dir.Name()+"/cgroup.type") { // which the root of all has not
		return fmt.Errorf("%s: %w", dir.Name(), errPopulated)
	}
	return writeFile(dir, "cgroup.subtree_control", "+"+controller)
}

// removeParent removes the group from every hierarchy where it has
// neither children nor processes, and leaves it where it has: unlike
// Group.Delete it never removes a child, and so it is safe while others create
// sandboxes. A group that is not there is no error.
func (h *Host) removeParent(group string) error {
	if err := checkPath(group); err != nil {
		return err
	}
	var errs []error
	for _, t := range h.trees {
		err := t.rmdir(group)
		// A read-only mount answers EROFS for any name.
		if err == nil || isGone(err) || errors.Is(err, unix.EBUSY) || !exists(t.path(group)) {
			continue
		}
		errs = append(errs, fmt.Errorf("remove parent cgroup: %w", err))
	}
	return errors.Join(errs...)
}

// rmdir removes the group at group, which has no children, from the hierarchy.
func (t tree) rmdir(group string) error {
	return t.withDir(path.Dir(group), func(dir *os.File) error { return rmdirAt(dir, path.Base(group)) })
}

// Children lists the names of the groups directly below path in any of the
// hierarchies, sorted. Without a group at path there are none.
func (h *Host) Children(path string) ([]string, error) {
	if err := checkPath(path); err != nil {
		return nil, err
	}
	var names []string
	for _, t := range h.trees {
		err := t.withDir(path, func(dir *os.File) error {
			found, err := children(dir)
			names = append(names, found...)
			return err
		})
		if err := ignore(err, fs.ErrNotExist); err != nil {
			return nil, fmt.Errorf("list cgroup %s: %w", path, err)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
