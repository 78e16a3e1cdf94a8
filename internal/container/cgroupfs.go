package container

import (
	"os"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fs"
)

// PinCgroupfs has the cgroup library find the cgroup file systems as the calling thread sees
// them. The library does that once in a process, at its first use: it keeps a descriptor of
// /sys/fs/cgroup, and on v1 the parent directory of the first hierarchy in the table of mounts.
// On a thread with a mount namespace of its own, the descriptor would lead nowhere once the
// namespace ends, and the first hierarchy can be that of a sandbox's root. A caller that creates
// containers on such threads calls PinCgroupfs first, from another thread.
func PinCgroupfs() {
	// The file that is opened below does not matter, nor whether it is there.
	if f, err := cgroups.OpenFile("/sys/fs/cgroup", "cgroup.procs", os.O_RDONLY); err == nil {
		f.Close()
	}
	if !cgroups.IsCgroup2UnifiedMode() {
		// A host without cgroups is an error later.
		_, _ = fs.NewManager(&cgroups.Cgroup{Path: "/", Resources: &cgroups.Resources{}}, nil)
	}
}
