package launcher

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/jobs"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/part"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/throttle"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Update changes limits of the sandbox. A zero field leaves its limit as it is. The limits hold at
// once, except the file size, the open files and the number of processes of a command: these hold
// for later commands. The number of processes of the whole sandbox holds at once. After an error the
// old limits hold.
//
// Errors: *[fault.ConfigError], [fault.ErrUnavailable] for a limit that this host does not
// enforce, and the errors of Pause.
func (s *Sandbox) Update(ctx context.Context, l spec.Limits) error {
	return s.change(ctx, func(c *container.Container) error {
		r, err := record.Read(s.session.Path())
		if err != nil {
			return err
		}
		next, err := limited(r, l, s.launcher.Data)
		if err != nil {
			return err
		}
		host, err := s.launcher.host()
		if err != nil {
			return err
		}
		return s.replaceLimits(c, host, r, next)
	})
}

// replaceLimits replaces the limits of the record r by those of next, or none of them. The
// leaves repeat the limits: on v1 a leaf must not have more processor time than the sandbox.
func (s *Sandbox) replaceLimits(c *container.Container, host *cgroups.Host, r, next record.Record) error {
	if err := s.limitSockets(next); err != nil {
		return err
	}
	old, repeated := jobs.Repeated(r), jobs.Repeated(next)
	between := cgroups.LeafLimits{Memory: old.Memory, CPUs: min(old.CPUs, repeated.CPUs)}
	group := s.session.Group
	s.session.Leaves.AwaitFirst() // else that leaf could get the old limits after the next step
	err := group.RepeatInLeaves(old, between)
	if err == nil {
		err = part.SetLimits(c, host, next)
	}
	if err != nil {
		err = part.AboveTotal(host, next.Config.Limits.CPUs, updateError(next.Config.Limits, err))
		return errors.Join(err, s.limitSockets(r), group.RepeatInLeaves(between, old))
	}
	back := func() error {
		return errors.Join(part.SetLimits(c, host, r), s.limitSockets(r), group.RepeatInLeaves(between, old))
	}
	if err := s.session.Keep(next); err != nil {
		return errors.Join(err, back())
	}
	if err := group.RepeatInLeaves(between, repeated); err != nil { // in some of the leaves
		return errors.Join(err, group.RepeatInLeaves(repeated, between), s.session.Keep(r), back())
	}
	return nil
}

// limitSockets sets the limit for the buffers of sockets to the record's limit of memory.
func (s *Sandbox) limitSockets(r record.Record) error {
	if r.Limits.Memory != spec.Enforced {
		return nil
	}
	most := r.Config.Limits.Memory
	err := s.session.Group.LimitSockets(int64(most))
	if errors.Is(err, unix.EBUSY) {
		return fault.Refusal(fmt.Errorf("the sandbox has more than %s in the buffers of its sockets; close some sockets first", most))
	}
	return err
}

// limited returns the record with new limits. data is the launcher's data directory.
func limited(r record.Record, l spec.Limits, data string) (record.Record, error) {
	for _, f := range spec.LimitFields() {
		switch {
		case !f.Given(l):
		case f.Fixed:
			return r, fault.Refusal(fmt.Errorf("limits.%s cannot be changed after the creation of a sandbox; make another sandbox", f.Name))
		case f.Absent(l):
			return r, fault.Refusal(fmt.Errorf("limits.%s: the limit cannot be lifted while the sandbox is up; give a high number", f.Name))
		case !f.EnforcedIn(r.Limits):
			return r, fmt.Errorf("limit %s %w on this host", f.Name, fault.ErrUnavailable)
		}
		f.Take(&r.Config.Limits, l)
	}
	var err error
	if r.Config, err = r.Config.Complete(); err != nil {
		return r, fault.Refusal(err)
	}
	if l.NoFile != 0 { // an old limit stays, even if only another launcher could set it
		if err := part.CheckOpenFiles(r.Config); err != nil {
			return r, fault.Refusal(err)
		}
	}
	if r.Disks == nil {
		r.Disks, err = throttle.Disks(r, data)
	}
	return r, err
}

// updateError explains the kernel's refusals.
func updateError(l spec.Limits, err error) error {
	if errors.Is(err, unix.EBUSY) {
		return fault.Refusal(fmt.Errorf("the sandbox uses more than %s of memory; end some of its processes first: %w", l.Memory, err))
	}
	return err
}
