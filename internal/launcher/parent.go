package launcher

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/part"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

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
	if _, err := part.EnsureParent(host); err != nil {
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
