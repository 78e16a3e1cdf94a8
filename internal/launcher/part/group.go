package part

import (
	"context"
	"errors"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
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
