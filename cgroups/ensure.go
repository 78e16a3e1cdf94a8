//go:build !oci_program

// The OCI program (cmd/sandbox-oci) does without this file: the library of cgroups takes as long to
// initialise as all of libcontainer.

package cgroups

import (
	"fmt"
	"strconv"

	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// EnsureParent makes the group at path, and those above it, if they are missing, ready for
// sandboxes as children: on v2 with the controllers enabled for them, on v1 with cpuset
// filled from above and memory accounted hierarchically. It returns the limits that hold
// for those children.
//
// A positive pids sets the parent's own limit of tasks, over all its children together, if
// the returned Limits enforce one. [Group.LimitTotals] sets the limits of memory and of
// processor time. There is no such limit of block I/O: on v1 a parent's does not bind its
// children (cgroup-v1/blkio-controller.rst, "Hierarchical Cgroups").
//
// If the caller may not make groups, the error is ErrNotWritable. On v2 it is an error,
// too, if one of the groups above has processes in it, as the root of a container's cgroup
// namespace mostly does.
func (h *Host) EnsureParent(path string, pids int64) (Limits, error) {
	if err := checkPath(path); err != nil {
		return Limits{}, err
	}
	ensure := h.ensureV1
	if h.Mode == V2 {
		ensure = h.ensureV2
	}
	enforced, err := ensure(path)
	if err == nil && pids > 0 && enforced.Pids.Enforced {
		g := &Group{host: h, path: path}
		_, err = g.files().set(setting{controller: "pids", file: "pids.max", value: strconv.FormatInt(pids, 10)})
	}
	if err != nil {
		// The new groups are removed again, unless they are in use. If even that is
		// refused, the first refusal counts.
		_ = h.removeParent(path)
		return Limits{}, fmt.Errorf("make parent cgroup %s: %w", path, err)
	}
	return enforced, nil
}

func (h *Host) ensureV1(path string) (Limits, error) {
	memory, counted := h.v1("memory")
	fresh := counted && !exists(memory.path(path))
	_, err := cgroup1.New(cgroup1.StaticPath(path), &specs.LinuxResources{}, cgroup1.WithHierarchy(h.subsystems))
	if err != nil {
		return Limits{}, notWritable(h.root, err)
	}
	if counted {
		if err := useHierarchy(memory, path); err != nil {
			return Limits{}, err
		}
	}
	if fresh {
		// While one group counts sockets, the kernel need not change its own code
		// for the next one.
		if err := memory.writeSockets(path, countSockets); err != nil {
			return Limits{}, err
		}
	}
	return h.parentLimits(path, nil), nil
}

// subsystems are the v1 controllers that need a group for the parent: those
// with limits or statistics, and cpuset, whose groups are born unusable.
// libcontainer makes the rest when it makes a child.
func (h *Host) subsystems() ([]cgroup1.Subsystem, error) {
	var mounted []cgroup1.Subsystem
	for _, s := range []cgroup1.Subsystem{
		cgroup1.NewMemory(h.root), cgroup1.NewCpu(h.root), cgroup1.NewCpuacct(h.root), cgroup1.NewCpuset(h.root),
		cgroup1.NewPids(h.root), cgroup1.NewFreezer(h.root), cgroup1.NewBlkio(h.root),
	} {
		if _, ok := h.v1(string(s.Name())); ok {
			mounted = append(mounted, s)
		}
	}
	return mounted, nil
}
