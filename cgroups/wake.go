package cgroups

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Wake prepares the kernel for a process that moves between groups. The first move after
// idle time waits for a grace period of RCU, some 10 ms, since it excludes every fork and
// exit (kernel/cgroup/cgroup.c: cgroup_attach_lock, kernel/rcu/sync.c); moves soon after
// do not. A caller that is going to start something calls Wake beside the steps before
// that.
//
// Wake moves the calling process to its own group. An error of that does not matter: the
// next move then takes its time.
func Wake() {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return
	}
	dir := ownFreezer(string(own))
	if dir == "" {
		return
	}
	f, err := os.OpenFile(filepath.Join(dir, "cgroup.procs"), os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer f.Close()
	// Where a mount shows another part of the hierarchy, the group of the name
	// is another one.
	members := make([]byte, 1<<16)
	n, _ := f.Read(members)
	if self := strconv.Itoa(os.Getpid()); slices.Contains(strings.Fields(string(members[:n])), self) {
		_, _ = f.WriteString(self)
	}
}

// ownFreezer is the directory of a process's group where no controller counts:
// in the v1 freezer's hierarchy, or else in the one of v2 (cgroups(7)).
func ownFreezer(groups string) string {
	v2 := ""
	for line := range strings.Lines(groups) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(f) < 3 || strings.Contains(f[2], ".."):
		case f[1] == "freezer":
			return filepath.Join(mountRoot, "freezer", f[2])
		case f[1] == "":
			v2 = filepath.Join(mountRoot, f[2])
		}
	}
	return v2
}
