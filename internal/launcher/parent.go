package launcher

import (
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/kernel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
)

// ensureParent makes the group of all sandboxes. They have half of the tasks that the host
// can have, or a lower limit that somebody has set before, and no huge pages.
func ensureParent(host *cgroups.Host) (cgroups.Limits, error) {
	pids, err := allPids()
	if err != nil {
		return cgroups.Limits{}, err
	}
	if pids, err = host.PidsWithin(record.CgroupParent, pids); err != nil {
		return cgroups.Limits{}, err
	}
	held, err := host.EnsureParent(record.CgroupParent, &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &pids}})
	if err != nil {
		return held, err
	}
	return held, host.ForbidHugepages(record.CgroupParent)
}

// allPids is how many tasks all sandboxes may have together.
func allPids() (int64, error) {
	numbers, err := kernel.Sysctl("kernel.pid_max")
	if err != nil {
		return 0, err
	}
	tasks, err := kernel.Sysctl("kernel.threads-max")
	if err != nil {
		return 0, err
	}
	return min(numbers, tasks) / 2, nil
}
