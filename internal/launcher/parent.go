package launcher

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
)

// ensureParent makes the group of all sandboxes. They have half of the tasks that the host
// can have, or a lower limit that somebody has set before, and no huge pages.
func ensureParent(host *cgroups.Host) (cgroups.Limits, error) {
	pids, err := allPids()
	if err != nil {
		return cgroups.Limits{}, err
	}
	if pids, err = host.PidsWithin(cgroupParent, pids); err != nil {
		return cgroups.Limits{}, err
	}
	held, err := host.EnsureParent(cgroupParent, &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &pids}})
	if err != nil {
		return held, err
	}
	return held, host.ForbidHugepages(cgroupParent)
}

// allPids is how many tasks all sandboxes may have together.
func allPids() (int64, error) {
	numbers, err := readCount("/proc/sys/kernel/pid_max")
	if err != nil {
		return 0, err
	}
	tasks, err := readCount("/proc/sys/kernel/threads-max")
	if err != nil {
		return 0, err
	}
	return min(numbers, tasks) / 2, nil
}

func readCount(path string) (int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return n, nil
}
