package cgroups

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// freezeWait bounds how long Kill tries to freeze a group before it kills moving
	// processes.
	freezeWait = 200 * time.Millisecond
	// drainWait is how long Kill waits for killed processes to leave before it
	// strikes again.
	drainWait = 100 * time.Millisecond
	// killBatch is how many processes are held by descriptor at a time.
	killBatch = 128
)

// Kill sends SIGKILL to every process in the group and in those below it, in
// any hierarchy, and returns when none is left: forked meanwhile, stopped and
// frozen ones included. Frozen groups are thawed for that. It strikes at least
// once, and if processes are left when ctx ends (one can be deep in a system
// call) the error names them and wraps ctx's; a ctx without a deadline can
// wait forever.
//
// Killed processes are not reaped; that is for their parents.
func (g *Group) Kill(ctx context.Context) error {
	ps := g.processes()
	return g.failed("kill", ps.killAll(ctx, func(left members, again bool) error { return ps.strike(ctx, left, again) }))
}

// killAll strikes until no process is left in the group.
func (ps processes) killAll(ctx context.Context, strike func(left members, again bool) error) error {
	for again := false; ; again = true {
		left, err := ps.members()
		switch {
		case err != nil:
			return err
		case left.isEmpty():
			return nil
		case slices.Contains(left.pids, os.Getpid()):
			return errors.New("this very process is in it")
		}
		if err := strike(left, again); err != nil {
			return err
		}
		if err := ps.drain(ctx); err != nil {
			return err
		}
	}
}

// stillIn is the error of a kill that ctx ended.
func stillIn(ctx context.Context, left members) error {
	return fmt.Errorf("still in it: %v: %w", left, context.Cause(ctx))
}

// strike kills the present processes of the group. On a v2 hierarchy the kernel does that
// in one write, concurrent forks included. By hand it is done on a kernel before 5.14, for
// processes that are in the group on v1 only, and for processes that outlived the strike
// before.
func (ps processes) strike(ctx context.Context, left members, again bool) error {
	if again && ctx.Err() != nil {
		return stillIn(ctx, left)
	}
	all, err := ps.killUnified(left)
	if err != nil {
		return err
	}
	if all && !again {
		return ps.thawAll()
	}
	return ps.killFrozen(ctx)
}

// killUnified writes cgroup.kill (cgroup-v2.rst, Linux 5.14) and tells whether
// that reached all of left.
func (ps processes) killUnified(left members) (all bool, err error) {
	t, ok := ps.host.unified()
	if !ok {
		return false, nil
	}
	reached, err := ps.membersIn(t)
	if err != nil || reached.isEmpty() {
		return false, err
	}
	err = t.withDir(ps.path, func(dir *os.File) error { return writeFile(dir, "cgroup.kill", "1") })
	if isGone(err) {
		return false, nil
	}
	return reached.hidden == left.hidden && slices.Equal(reached.pids, left.pids), err
}

// killFrozen freezes the group so that nothing can fork away, signals all its processes,
// and thaws it so that they can die. If freezing fails, or processes are in a hierarchy
// without a freezer, the next strike meets processes that were forked meanwhile.
func (ps processes) killFrozen(ctx context.Context) error {
	freezing, cancel := context.WithTimeout(ctx, freezeWait)
	defer cancel()
	if f, err := ps.freezer(); err == nil {
		_ = f.Freeze(freezing)
		_ = f.Close()
	}
	err := ps.signal(unix.SIGKILL)
	return errors.Join(err, ps.thawAll())
}

// A member is a process of a group, held.
type member struct{ pid, pidfd int }

// signal sends a signal to every process of the group, and never to another
// that got its pid: the signal goes through a pidfd, and only if the group
// still lists the pid after the pidfd was opened. Lower numbers come first, which
// are parents mostly: none shall see its children killed and go its way.
func (ps processes) signal(sig unix.Signal) error {
	todo, err := ps.members()
	if err != nil {
		return err
	}
	var errs []error
	for batch := range slices.Chunk(todo.pids, killBatch) {
		held := make([]member, 0, len(batch))
		for _, pid := range batch {
			fd, err := unix.PidfdOpen(pid, 0)
			if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
				continue // it has ended; before Linux 6.15 EINVAL says so of a group's leader
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("pidfd_open %d: %w", pid, err))
				continue
			}
			held = append(held, member{pid, fd})
		}
		still, err := ps.members()
		errs = append(errs, err)
		for _, m := range held {
			if _, listed := slices.BinarySearch(still.pids, m.pid); listed {
				if err := unix.PidfdSendSignal(m.pidfd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
					errs = append(errs, fmt.Errorf("signal %d: %w", m.pid, err))
				}
			}
			_ = unix.Close(m.pidfd)
		}
	}
	return errors.Join(errs...)
}

// thawAll thaws the group and, with the v1 freezer, each group below it, since
// a v1-frozen process cannot die (cgroup-v1/freezer-subsystem.rst). One frozen
// on v2 can.
func (ps processes) thawAll() error {
	t, ok := ps.host.v1("freezer")
	if !ok {
		return nil
	}
	return ignore(t.eachGroup(ps.path, func(dir *os.File) error { return writeFile(dir, "freezer.state", "THAWED") }), fs.ErrNotExist)
}

// drain waits until the group is empty, or for drainWait, or until ctx ends;
// the caller looks which.
func (ps processes) drain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, drainWait)
	defer cancel()
	for p := (pause{}); ; {
		if left, err := ps.members(); err != nil || left.isEmpty() {
			return err
		}
		if p.wait(ctx) != nil {
			return nil
		}
	}
}
