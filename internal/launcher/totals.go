package launcher

import (
	"fmt"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// LimitTotals bounds the memory, in bytes, and the processor time of all sandboxes of
// the host together, whoever made them: both, or on an error neither. Zero leaves one
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
	group, err := host.Open(cgroupParent)
	if err != nil {
		return err
	}
	if err := group.LimitTotals(cgroups.Totals{Memory: int64(memory), CPUs: float64(cpus)}); err != nil {
		return fmt.Errorf("totals of all sandboxes: %w", err)
	}
	return nil
}
