package container

import (
	"os"

	"github.com/opencontainers/cgroups"
)

// PinCgroupfs has the cgroup library open /sys/fs/cgroup as the calling thread sees it.
// The library does that once in a process, at its first use, and keeps the descriptor:
// opened on a thread whose mount namespace ends, it would lead nowhere from then on. A
// caller that creates containers on such threads calls PinCgroupfs first, from another
// thread.
func PinCgroupfs() {
	// The file that is opened below does not matter, nor whether it is there.
	if f, err := cgroups.OpenFile("/sys/fs/cgroup", "cgroup.procs", os.O_RDONLY); err == nil {
		f.Close()
	}
}
