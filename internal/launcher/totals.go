package launcher

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// LimitTotals bounds the memory, in bytes, and the processor time of all sandboxes of the
// host together, with any maker: both, or on an error neither. Zero leaves one as it is.
// The limits last until they are set again or the host restarts.
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
	if err != nil {
		return fmt.Errorf("totals of all sandboxes: %w", err)
	}
	return nil
}

// aboveTotal explains why cgroup v1 has refused the processor time of a sandbox, if it is
// above the total.
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
	return launch.Refusal(&spec.FieldError{Field: "limits.cpus", Problem: fmt.Sprintf(
		"%v is more than the %v that all sandboxes of this host have together (launcher --total-cpus)", cpus, total.CPUs)})
}
