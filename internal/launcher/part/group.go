package part

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/kernel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// groups are the cgroups of sandboxes, with all processes in them, and the state of their containers in libcontainer.
type groups struct{ *Parts }

func (g groups) find() ([]string, error) {
	host, err := g.Host()
	if err != nil {
		return nil, err
	}
	names, err := host.Children(record.CgroupParent)
	return g.madeIDs(names), err
}

func (g groups) release(ctx context.Context, r *Remains) (err error) {
	if r.Record != nil {
		defer func() { g.Handed.Leave(r.ID, *r.Record, r.store, err == nil) }()
		if g.vanish(ctx, r) == nil {
			return nil
		}
	}
	if err := errors.Join(r.Group.LiftThrottles(), r.Group.Kill(ctx)); err != nil {
		return err
	}
	err = g.discardContainer(r)
	if errors.Is(err, container.ErrForeign) { // the container is not the sandbox's, and stays
		err = nil
	}
	return errors.Join(err, r.Group.Delete(ctx))
}

// vanish is the quick way to remove a healthy sandbox: vanish does not search each hierarchy for
// processes. If it returns an error, the caller must remove the sandbox the thorough way, which
// repeats all these steps.
func (g groups) vanish(ctx context.Context, r *Remains) error {
	if err := r.End(); err != nil {
		return err
	}
	if err := r.Group.Delete(ctx); err != nil {
		return err
	}
	return g.discardContainer(r)
}

// discardContainer removes the state of the sandbox's container. A claim that was cut short leaves the
// state with the id of the blank.
func (g groups) discardContainer(r *Remains) (err error) {
	if r.KeepContainer {
		return nil
	}
	if r.names.Made != r.ID {
		err = container.DiscardIn(g.State, r.names.Made, r.Group.Path())
	}
	return errors.Join(err, container.DiscardIn(g.State, r.ID, r.Group.Path()))
}

// vanishTime is how long a PID 1 that was killed may take to end in the quick
// way of removing a sandbox.
const vanishTime = 100 * time.Millisecond

// End ends all processes of a healthy sandbox, which has a record: the end of PID 1 ends its pid namespace.
func (r *Remains) End() error {
	if r.Record.Config.PID == spec.PIDHost { // the end of PID 1 ends no other process
		return errors.ErrUnsupported
	}
	init, err := r.Record.Init.Kill()
	if err != nil {
		return err
	}
	defer init.Close()
	// The kernel ends the pid namespace during the next steps.
	if frozen, err := r.Group.Frozen(); err == nil && frozen { // a killed process ends only after it has left the v1 freezer
		return &fault.SandboxError{ID: r.ID, Err: fault.ErrPaused}
	}
	if err := r.Group.LiftThrottles(); err != nil {
		return err
	}
	return init.Await(vanishTime)
}

// makeGroup makes the sandbox's cgroup, before the sandbox's root is mounted: the sandbox sees
// its own limits in the group. The limits and PID 1 come later, by libcontainer.
func (m *Making) makeGroup(context.Context) (err error) {
	if m.held, err = EnsureParent(m.host); err != nil {
		return err
	}
	m.names = m.parts.NewNames(m.ID)
	if err := m.names.Write(m.parts.Dir(m.ID)); err != nil {
		return err
	}
	if m.group, err = m.host.Open(m.names.CgroupPath()); err != nil {
		return err
	}
	if m.views, err = m.group.Views(); err != nil {
		return err
	}
	m.atEnd(func() error {
		cgroups.CloseViews(m.views)
		return nil
	})
	return nil
}

// EnsureParent makes the group of all sandboxes. All sandboxes together can have the tasks of
// [allPids], or fewer if somebody has set a lower limit before, and no huge pages.
func EnsureParent(host *cgroups.Host) (cgroups.Limits, error) {
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

// AboveTotal returns a clearer error if cgroup v1 has refused the processor time of a sandbox
// because it is above the total. Otherwise it returns refused.
func AboveTotal(host *cgroups.Host, cpus spec.CPUs, refused error) error {
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
