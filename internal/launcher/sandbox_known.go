package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/agent"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/statedir"
)

// known is a sandbox as its record describes it.
type known struct {
	roots
	id    string
	group *cgroups.Group

	// mu guards the record, and state.
	mu     sync.Mutex
	record record
	// state tells whether the sandbox is paused. Nil until it is needed.
	state *cgroups.State
}

// newKnown is a sandbox of a record, with its cgroup.
func newKnown(in roots, id string, group *cgroups.Group, r record) *known {
	return &known{roots: in, id: id, group: group, record: r}
}

// refresh takes a record that was written since, and returns false if that is
// another sandbox's.
func (v *known) refresh(r record) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if r.Init != v.record.Init {
		return false
	}
	v.record = r
	return true
}

// forgetState closes what tells whether the sandbox is paused. The next call of paused
// opens it again.
func (v *known) forgetState() {
	v.mu.Lock()
	state := v.state
	v.state = nil
	v.mu.Unlock()
	if state != nil {
		_ = state.Close() // nothing more is wanted of it
	}
}

// current is the record.
func (v *known) current() record {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.record
}

// init is the sandbox's PID 1.
func (v *known) init() process.ID { return v.current().Init }

func (v *known) up() bool { r := v.current(); return r.up() }

// dir is the sandbox's directory.
func (v *known) dir() string { return v.roots.dir(v.id) }

// why says what is the matter with the sandbox when its agent does not answer;
// if nothing is, it returns the error.
func (v *known) why(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case !v.present():
		return &launch.SandboxError{ID: v.id, Err: launch.ErrNotFound}
	case !v.up():
		return &launch.SandboxError{ID: v.id, Err: launch.ErrNotRunning}
	case v.paused():
		return &launch.SandboxError{ID: v.id, Err: launch.ErrPaused}
	case agentGone(err) && v.init().Ends():
		return &launch.SandboxError{ID: v.id, Err: launch.ErrNotRunning}
	}
	return err
}

// agentGone says that the connection to the agent is of no use any more: the agent
// has ended, or another exec has noticed that and closed it.
func agentGone(err error) bool { return errors.Is(err, agent.ErrGone) || errors.Is(err, os.ErrClosed) }

// present says whether the sandbox is there, as this one and not as another of
// its name.
func (v *known) present() bool {
	r, err := readRecord(v.dir())
	return err == nil && r.Init == v.init()
}

// paused says whether the sandbox stands still.
func (v *known) paused() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.state == nil {
		state, err := v.group.OpenState()
		if err != nil {
			return false // it is gone, which shows soon
		}
		v.state = state
	}
	frozen, err := v.state.Frozen()
	return err == nil && frozen
}

// container loads the sandbox's container. What the record of the container names is
// the sandbox's own: the cgroups, and PID 1.
func (v *known) container() (*container.Container, error) {
	l := v.roots
	if err := errors.Join(l.checkRoot(), statedir.CheckOwnDir(filepath.Join(l.root, v.id), unix.O_NOFOLLOW)); err != nil {
		return nil, err
	}
	c, err := container.LoadIn(l.root, v.id, l.cgroupOf(v.id))
	if err != nil {
		return nil, err
	}
	s, err := c.State()
	if err != nil {
		return nil, err
	}
	if init := v.init(); s.Pid != 0 && s.Pid != init.Pid {
		return nil, fmt.Errorf("sandbox %s: %w: process %d is not its PID 1, which is %d", v.id, container.ErrForeign, s.Pid, init.Pid)
	}
	return c, nil
}

// keepRecord has a record take the place of the sandbox's, which the caller holds.
func (v *known) keepRecord(next record) error {
	if err := next.write(v.dir()); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.record = next
	return nil
}
