package cgroups

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Limit says whether the kernel holds one kind of limit.
type Limit struct {
	Enforced bool
	// Reason says why the limit is not enforced, or which part an enforced one leaves out;
	// "" if there is nothing to say.
	Reason string
}

// Limits says which limits are enforced.
type Limits struct {
	Memory Limit
	CPU    Limit
	Pids   Limit
	IO     Limit
	// Sockets is whether the buffers of TCP and UDP sockets are limited: on v2 with
	// the memory, on v1 beside it.
	Sockets Limit
}

// A kind is a sort of limit with its names in the two interfaces.
type kind struct {
	v1, v2         string // controller
	v1File, v2File string // that sets the limit
	config         string // the missing option of the kernel if the controller is there and the file is not
	sockets        bool   // whether it is about sockets alone
	onRoot         bool   // whether v1File exists in the root of its hierarchy too
}

// limitsFrom asks about each kind of limit in turn.
func limitsFrom(ask func(kind) Limit) Limits {
	return Limits{
		Memory:  ask(kind{v1: "memory", v2: "memory", v1File: "memory.limit_in_bytes", v2File: "memory.max", config: "CONFIG_MEMCG", onRoot: true}),
		CPU:     ask(kind{v1: "cpu", v2: "cpu", v1File: "cpu.cfs_quota_us", v2File: "cpu.max", config: "CONFIG_CFS_BANDWIDTH", onRoot: true}),
		Pids:    ask(pidsLimit),
		IO:      ask(kind{v1: "blkio", v2: "io", v1File: "blkio.throttle.read_bps_device", v2File: "io.max", config: "CONFIG_BLK_DEV_THROTTLING", onRoot: true}),
		Sockets: ask(kind{v1: "memory", v2: "memory", v1File: socketFile, v2File: "memory.max", config: "CONFIG_MEMCG_V1 with " + socketFile, onRoot: true, sockets: true}),
	}
}

// hostLimits are the limits that the roots of the hierarchies promise.
func (h *Host) hostLimits() Limits {
	return limitsFrom(func(k kind) Limit {
		t, name, ok := h.limitHierarchy(k)
		if !ok {
			return Limit{Reason: h.absence(name)}
		}
		if err := unix.Access(t.dir, unix.W_OK); err != nil {
			return Limit{Reason: notWritable(t.dir, err).Error()}
		}
		if h.Mode != V2 && k.onRoot && !exists(t.path(k.v1File)) {
			return Limit{Reason: "the kernel lacks " + k.config}
		}
		return Limit{Enforced: true, Reason: h.reservation(k, t.dir)}
	})
}

// parentLimits are the limits that hold for the children of the group at path, which
// exists. refused has the kernel's answers to enabling v2 controllers for them.
func (h *Host) parentLimits(path string, refused map[string]error) Limits {
	return limitsFrom(func(k kind) Limit {
		t, name, ok := h.limitHierarchy(k)
		if !ok {
			return Limit{Reason: h.absence(name)}
		}
		file := k.v1File
		if h.Mode == V2 {
			file = k.v2File
			if err := refused[name]; err != nil {
				return Limit{Reason: fmt.Sprintf("enable the %s controller: %v", name, err)}
			}
		}
		if !exists(t.path(path) + "/" + file) {
			return Limit{Reason: "the kernel lacks " + k.config}
		}
		return Limit{Enforced: true, Reason: h.reservation(k, t.path(path))}
	})
}

// limitHierarchy returns the hierarchy where libcontainer sets a limit, and the name of
// the controller there.
func (h *Host) limitHierarchy(k kind) (t tree, controller string, ok bool) {
	if h.Mode != V2 {
		t, ok = h.v1(k.v1)
		return t, k.v1, ok
	}
	t, ok = h.unified()
	return t, k.v2, ok && slices.Contains(t.controllers, k.v2)
}

// reservation names the part that an enforced limit leaves out. dir is a group with the
// controller's files, or on v2 the root, which has none.
func (h *Host) reservation(k kind, dir string) string {
	switch {
	case k.sockets:
	case k.v1 == "memory" && h.Mode != V2 && !exists(dir+"/memory.memsw.limit_in_bytes"),
		k.v1 == "memory" && h.Mode == V2 && dir != h.root && !exists(dir+"/memory.swap.max"):
		return "swap is not limited: the kernel does not account it (boot with swapaccount=1)"
	case k.v1 == "blkio" && h.Mode != V2:
		// Documentation/admin-guide/cgroup-v1/blkio-controller.rst, "Common
		// files among various policies"; writeback is tied to groups on v2 only
		// (cgroup-v2.rst, "Writeback").
		return "buffered writes are not limited: cgroup v1 attributes only reads and direct writes"
	}
	return ""
}

// absence says why a controller is in no hierarchy where limits are set.
func (h *Host) absence(controller string) string {
	if t, ok := h.unified(); ok && h.Mode == Hybrid && slices.Contains(t.controllers, controller) {
		return fmt.Sprintf("the %s controller is on the v2 hierarchy of a hybrid host, where no limits are set: boot with all controllers on v2 (systemd.unified_cgroup_hierarchy=1)", controller)
	}
	table, err := os.ReadFile("/proc/cgroups")
	if err != nil {
		return fmt.Sprintf("the %s controller is not mounted", controller)
	}
	return absenceFrom(string(table), controller, h.Mode)
}

// absenceFrom reads the reason out of /proc/cgroups (cgroups(7)): lines of
// name, hierarchy, number of groups, enabled.
func absenceFrom(table, controller string, mode Mode) string {
	// v1 knows the io controller as blkio, and /proc/cgroups speaks v1.
	legacy := controller
	if legacy == "io" {
		legacy = "blkio"
	}
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) != 4 || f[0] != legacy {
			continue
		}
		switch {
		case f[3] == "0":
			return fmt.Sprintf("the %s controller is disabled at boot: take cgroup_disable=%s off the kernel command line, or add cgroup_enable=%[2]s", controller, legacy)
		case mode == V2 && f[1] != "0":
			return fmt.Sprintf("the %s controller is on a v1 hierarchy", controller)
		case mode == V2:
			return fmt.Sprintf("the %s controller is not delegated to this cgroup namespace", controller)
		default:
			return fmt.Sprintf("the %s controller is not mounted: mount -t cgroup -o %[1]s none %s/%[1]s", controller, mountRoot)
		}
	}
	return fmt.Sprintf("the kernel does not offer the %s controller", controller)
}

func exists(path string) bool {
	return unix.Access(path, unix.F_OK) == nil
}
