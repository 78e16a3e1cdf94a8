package launcher

import (
	"context"
	"errors"
	"time"
)

// untilOver calls f, which makes the parts of the sandbox, and gives up the making if ctx ends: libcontainer waits for a
// stopped process without end. So untilOver kills the processes of the sandbox then, and returns the error of ctx. The
// caller must remove the rest.
func (m *creation) untilOver(ctx context.Context, f func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	finished, killed := make(chan struct{}), make(chan struct{})
	spare := context.AfterFunc(ctx, func() {
		defer close(killed)
		m.killAll(finished)
	})
	err := f()
	close(finished)
	if !spare() { // no request may use the sandbox while killAll kills its processes
		<-killed
		return ctx.Err()
	}
	return err
}

// killAll kills the processes of a sandbox that is being made, until the making has failed. A process that is not in
// the sandbox's cgroup yet gets there soon. libcontainer does not know each child that a killed helper has left to this
// process, so the next removal reaps all of them.
func (m *creation) killAll(finished <-chan struct{}) {
	killed := map[int]bool{}
	for {
		for _, pid := range m.killOnce() {
			killed[pid] = true
		}
		select {
		case <-finished: // libcontainer has reaped its own children
			for pid := range killed {
				m.launcher.children.Adopt(pid) // Reap forgets one that is no child
			}
			return
		case <-time.After(killAgain):
		}
	}
}

// killAgain is the time between two kills.
const killAgain = 100 * time.Millisecond

// killOnce returns the processes that it has killed. On a host with a freezer it misses none that was just forked.
func (m *creation) killOnce() []int {
	ctx, cancel := context.WithTimeout(context.Background(), killAgain)
	defer cancel()
	group, err := m.launcher.parts.Group(m.ID)
	if err != nil {
		return nil
	}
	_ = group.Freeze(ctx)
	pids, _ := group.Procs()
	_ = errors.Join(group.Kill(ctx), group.Close()) // the removal that follows reports the rest
	return pids
}
