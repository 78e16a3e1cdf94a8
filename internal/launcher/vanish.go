package launcher

import (
	"context"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
)

// vanishTime is how long a PID 1 that was killed may take to end in the quick
// way of removing a sandbox.
const vanishTime = 100 * time.Millisecond

// vanish removes a sandbox that is as it should be, without looking at each
// hierarchy for processes: with its PID 1 goes its pid namespace, and then its
// groups are empty. Of any other it is an error, with nothing done that the
// thorough way would not do.
func (l *Launcher) vanish(ctx context.Context, id string, init process.ID, group *cgroups.Group) error {
	if l.paused(id) { // a process in the v1 freezer does not end
		return &launch.SandboxError{ID: id, Err: launch.ErrPaused}
	}
	if err := group.LiftThrottles(); err != nil {
		return err
	}
	if err := init.End(vanishTime); err != nil {
		return err
	}
	if err := group.Delete(ctx); err != nil {
		return err
	}
	return container.DiscardIn(l.State, id, group.Path())
}
