package launcher

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/kernel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// ensureParent makes the group of all sandboxes. All sandboxes together can have the tasks of
// [allPids], or fewer if somebody has set a lower limit before, and no huge pages.
func ensureParent(host *cgroups.Host) (cgroups.Limits, error) {
	pids, err := allPids()
	if err != nil {
		return cgroups.Limits{}, err
	}
	if pids, err = host.PidsWithin(record.CgroupParent, pids); err != nil {
		return cgroups.Limits{}, err
	}
	held, err := host.EnsureParent(record.CgroupParent, pids)
	if err != nil {
		return held, err
	}
	return held, host.ForbidHugepages(record.CgroupParent)
}

// allPids returns how many tasks all sandboxes may have together: they use half of
// kernel.pid_max and of kernel.threads-max at most.
func allPids() (int64, error) {
	numbers, err := kernel.Sysctl("kernel.pid_max")
	if err != nil {
		return 0, err
	}
	tasks, err := kernel.Sysctl("kernel.threads-max")
	if err != nil {
		return 0, err
	}
	return shareOfTasks(numbers, tasks), nil
}

func shareOfTasks(numbers, tasks int64) int64 {
	return min(numbers/kernel.NumbersOfATask, tasks) / 2
}

// LimitTotals bounds the memory, in bytes, and the processor time of all sandboxes of the host
// together, also of other launchers. After an error neither is changed. A zero leaves its limit
// as it is. The limits last until they are set again or the host restarts.
func (l *Launcher) LimitTotals(memory spec.Size, cpus spec.CPUs) error {
	if memory == 0 && cpus == 0 {
		return nil
	}
	host, err := l.host()
	if err != nil {
		return err
	}
	if _, err := ensureParent(host); err != nil {
		return err
	}
	group, err := host.Open(record.CgroupParent)
	if err != nil {
		return err
	}
	err = group.LimitTotals(cgroups.Totals{Memory: int64(memory), CPUs: float64(cpus)})
	if host.Mode != cgroups.V2 && cpus > 0 && errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("total of %v cpus: a sandbox that is up has more, which cgroup v1 refuses: lower its --cpus with update, remove it, or set a higher total (%w)", cpus, err)
	}
	if host.Mode != cgroups.V2 && memory > 0 && errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("total of %v of memory: the sandboxes that are up use more, which cgroup v1 refuses: remove some, or set a higher total (%w)", memory, err)
	}
	if err != nil {
		return fmt.Errorf("totals of all sandboxes: %w", err)
	}
	return nil
}

// aboveTotal returns a clearer error if cgroup v1 has refused the processor time of a sandbox
// because it is above the total. Otherwise it returns refused.
func aboveTotal(host *cgroups.Host, cpus spec.CPUs, refused error) error {
	if host.Mode == cgroups.V2 || !errors.Is(refused, unix.EINVAL) {
		return refused
	}
	group, err := host.Open(record.CgroupParent)
	if err != nil {
		return refused
	}
	total, err := group.Settings()
	if err != nil || total.CPUs == 0 || float64(cpus) <= total.CPUs {
		return refused
	}
	return fault.Refusal(&spec.FieldError{Field: "limits.cpus", Problem: fmt.Sprintf(
		"%v is more than the %v that all sandboxes of this host have together (launcher --total-cpus)", cpus, total.CPUs)})
}
