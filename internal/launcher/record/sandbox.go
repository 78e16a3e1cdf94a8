package record

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/agent"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
)

// Sandbox is a sandbox as its record describes it.
type Sandbox struct {
	Roots
	ID    string
	Group *cgroups.Group

	// mu guards the fields below.
	mu sync.Mutex
	// version is the version of record on disk. Zero: record may be older.
	record  Record
	version Version
	// state tells whether the sandbox is paused. Nil until it is needed.
	state *cgroups.State
}

// NewSandbox is a sandbox of a record, with its cgroup. It takes the record for older than the one
// on disk.
func NewSandbox(in Roots, id string, group *cgroups.Group, r Record) *Sandbox {
	return &Sandbox{Roots: in, ID: id, Group: group, record: r}
}

// Refresh takes a record that was written since, with its version, and returns false if that is
// another sandbox's.
func (v *Sandbox) Refresh(r Record, now Version) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if r.Init != v.record.Init {
		return false
	}
	v.record, v.version = r, now
	return true
}

// IsAt says that the record has this version.
func (v *Sandbox) IsAt(now Version) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.version == now
}

// TakeState takes the open freezer of the sandbox's cgroup, or nil. The caller must not share v before.
func (v *Sandbox) TakeState(state *cgroups.State) { v.state = state }

// CloseState closes the descriptor that tells whether the sandbox is paused. The next call
// of Paused opens it again.
func (v *Sandbox) CloseState() {
	v.mu.Lock()
	state := v.state
	v.state = nil
	v.mu.Unlock()
	if state != nil {
		_ = state.Close() // nothing more is wanted of it
	}
}

// Current is the record.
func (v *Sandbox) Current() Record {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.record
}

// Init is the sandbox's PID 1.
func (v *Sandbox) Init() process.ID { return v.Current().Init }

// Up says that the sandbox is up.
func (v *Sandbox) Up() bool { r := v.Current(); return r.isUp() }

// Path is the sandbox's directory.
func (v *Sandbox) Path() string { return v.Dir(v.ID) }

// Why returns the reason why the sandbox's agent does not answer. Without a reason it
// returns the error.
func (v *Sandbox) Why(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case !v.Present():
		return &fault.SandboxError{ID: v.ID, Err: fault.ErrNotFound}
	case !v.Up():
		return &fault.SandboxError{ID: v.ID, Err: fault.ErrNotRunning}
	case v.Paused():
		return &fault.SandboxError{ID: v.ID, Err: fault.ErrPaused}
	case AgentGone(err) && v.Init().Ends():
		return &fault.SandboxError{ID: v.ID, Err: fault.ErrNotRunning}
	}
	return err
}

// AgentGone says that the connection to the agent is of no use any more: the agent
// has ended, or another exec has noticed that and closed it.
func AgentGone(err error) bool { return errors.Is(err, agent.ErrGone) || errors.Is(err, os.ErrClosed) }

// Present says that the record on disk is still of this sandbox, and not of another one with
// the same id. Present is also true if the record cannot be read, for example because too many files are open.
func (v *Sandbox) Present() bool {
	r, err := Read(v.Path())
	return err == nil && r.Init == v.Init() || err != nil && !errors.Is(err, fs.ErrNotExist)
}

// Paused says whether a user has paused the sandbox.
func (v *Sandbox) Paused() bool { return v.Frozen() && !v.onDisk().StandsStill() }

// onDisk is the record, also if another process has written it.
func (v *Sandbox) onDisk() Record {
	if now, err := VersionOf(v.Path()); err == nil && !v.IsAt(now) {
		if r, err := Read(v.Path()); err == nil && r.Init == v.Init() {
			return r
		}
	}
	return v.Current()
}

// Frozen says whether the processes of the sandbox stand still: a user has paused the sandbox, or
// the runtime changes its files or mounts.
func (v *Sandbox) Frozen() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.state == nil {
		state, err := v.Group.OpenState()
		if err != nil {
			return false // it is gone, which shows soon
		}
		v.state = state
	}
	frozen, err := v.state.Frozen()
	return err == nil && frozen
}

// Container loads the sandbox's container. The cgroups and PID 1 in the container's record
// must be the sandbox's own.
func (v *Sandbox) Container() (*container.Container, error) {
	l := v.Roots
	if err := errors.Join(l.CheckRoot(), statedir.CheckOwnDir(filepath.Join(l.State, v.ID), unix.O_NOFOLLOW)); err != nil {
		return nil, err
	}
	c, err := container.LoadIn(l.State, v.ID, v.Group.Path())
	if err != nil {
		return nil, err
	}
	s, err := c.State()
	if err != nil {
		return nil, err
	}
	if init := v.Init(); s.Pid != 0 && s.Pid != init.Pid {
		return nil, fmt.Errorf("sandbox %s: %w: process %d is not its PID 1, which is %d", v.ID, container.ErrForeign, s.Pid, init.Pid)
	}
	return c, nil
}

// Keep has a record take the place of the sandbox's, which the caller holds.
func (v *Sandbox) Keep(next Record) error {
	if err := next.Write(v.Path()); err != nil {
		return err
	}
	now, err := VersionOf(v.Path())
	v.mu.Lock()
	defer v.mu.Unlock()
	v.record, v.version = next, now
	return err
}
