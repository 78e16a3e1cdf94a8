package jobs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/agent"
	"github.com/sandbox-runtime/sandbox-runtime/internal/filewatch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/overlay"
	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/throttle"
)

// A Session is what this process keeps of a sandbox that it works with, for the
// next exec to be fast: the connection to the agent, cgroups made ahead. All of
// it can be had again at any time, and is dropped when nothing has run for a
// while: an idle sandbox costs this process some memory, and one without
// handles not even that.
type Session struct {
	*record.Sandbox
	all *Sessions

	// Of launcher.mu: how many handles there are, and which record was read.
	users   int
	version record.Version

	Overlay *overlay.Files

	// Lift is of the limits of disk traffic. Its mutex is taken before mu.
	Lift *throttle.Lift

	Files *filewatch.Watcher

	// Output is of detached commands. Its mutex is taken before mu.
	Output share

	// Mu guards what follows.
	Mu sync.Mutex
	// Conn is nil until it is needed.
	conn *agent.Conn
	// connecting is held by the one that connects: a channel, for a context to
	// interrupt the wait for it.
	connecting chan struct{}
	// tookOver says that what others left was looked at.
	tookOver bool
	Leaves   leafPool
	// running are this process's execs that have not ended, by their ids, without the
	// detached ones: any number of handles may be of one of these.
	running map[string]*Process
	// detached counts the detached ones that it has started; starting are those
	// that the agent need not know yet.
	detached int
	starting map[ExecID]bool
	// Busy counts what goes on and needs the connection or the group.
	Busy int
	// idle fires when nothing has gone on for a while.
	idle *time.Timer
	// last is when something went on.
	last time.Time
	// gone says that the sandbox is not up any more.
	gone bool
}

// idleTime is how long a sandbox in which nothing runs keeps what is held for
// the next exec.
const idleTime = 3 * time.Second

func newLive(l *Sessions, id string, r record.Record, v record.Version, group *cgroups.Group) *Session {
	box := record.NewSandbox(l.Roots, id, group, r)
	lift := throttle.New(box)
	return &Session{
		Sandbox: box, all: l, users: 1, version: v,
		Files: filewatch.New(box, &l.Groups), Lift: lift, Overlay: l.layers.Files(box, lift),
		connecting: make(chan struct{}, 1), running: map[string]*Process{},
		starting: map[ExecID]bool{},
	}
}

// refresh takes a record that was written since, and returns false if that is
// another sandbox's. The caller has launcher.mu.
func (v *Session) refresh(r record.Record, now record.Version) bool {
	if !v.Sandbox.Refresh(r) {
		return false
	}
	v.version = now
	v.Unwatch() // there may be another workspace
	return true
}

// Adopt takes over the connection that the sandbox was made with.
func (v *Session) Adopt(conn *agent.Conn) {
	v.Mu.Lock()
	defer v.Mu.Unlock()
	v.conn, v.tookOver = conn, true
	v.rest()
}

// Enter says that something begins which needs what is held; leave says that it
// is over.
func (v *Session) Enter() {
	v.Mu.Lock()
	defer v.Mu.Unlock()
	v.Busy++
}

func (v *Session) Leave() {
	v.Mu.Lock()
	v.Busy--
	last := v.Busy == 0 && v.gone
	v.rest()
	v.Mu.Unlock()
	if last {
		v.Drop()
	}
}

// rest has what is held dropped after a while. The caller has mu.
func (v *Session) rest() {
	v.last = time.Now()
	if v.Busy == 0 && v.idle == nil && !v.gone {
		v.idle = time.AfterFunc(idleTime, v.settle)
	}
}

// settle drops what is held, unless something went on meanwhile.
func (v *Session) settle() {
	v.Mu.Lock()
	left := idleTime - time.Since(v.last)
	again := v.Busy == 0 && left > 0 && !v.gone
	if again {
		v.idle.Reset(left)
	} else {
		v.idle = nil
	}
	v.Mu.Unlock()
	if !again {
		v.Drop()
	}
}

// Release gives up one handle.
func (v *Session) Release() {
	v.all.mu.Lock()
	v.users--
	v.all.mu.Unlock()
	gone := !v.Init().Lives()
	v.Mu.Lock()
	v.gone = v.gone || gone
	v.rest()
	v.Mu.Unlock()
	if gone {
		init := v.Init()
		v.all.Deadlines.Stop(func(key DeadlineKey) bool { return key.ID == v.ID && key.init == init })
		v.Drop()
	}
}

// Drop lets go of what is held, if nothing goes on. Of a tied sandbox that is up
// the connection stays, since it is what ties it.
func (v *Session) Drop() {
	v.all.mu.Lock()
	v.Mu.Lock()
	var conn *agent.Conn
	var leaves []*cgroups.Leaf
	idle := v.Busy == 0
	if idle {
		leaves = v.Leaves.empty()
		if !v.Current().Tied || v.gone {
			conn, v.conn = v.conn, nil
		}
		if v.users == 0 && v.conn == nil && v.all.Known[v.ID] == v {
			delete(v.all.Known, v.ID)
		}
		if v.idle != nil {
			v.idle.Stop()
			v.idle = nil
		}
		v.Busy++ // until all is let go of: the group is needed for that
	}
	v.Mu.Unlock()
	v.all.mu.Unlock()
	if !idle {
		return
	}
	v.Unwatch()
	if conn != nil {
		_ = conn.Close() // nothing more is wanted of it
	}
	v.CloseState()
	v.discard(leaves)
	v.Mu.Lock()
	defer v.Mu.Unlock()
	v.Busy--
	if v.Busy == 0 {
		_ = v.Group.Close() // as above
	}
}

// Unwatch stops watching the sandbox's files.
func (v *Session) Unwatch() { v.Files.Stop(v.all.tending) }

// Connect returns the connection to the agent.
func (v *Session) Connect(ctx context.Context) (*agent.Conn, error) {
	v.Mu.Lock()
	conn := v.conn
	v.Mu.Unlock()
	if conn != nil {
		return conn, nil
	}
	select {
	case v.connecting <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-v.connecting }()
	v.Mu.Lock()
	conn = v.conn
	v.Mu.Unlock()
	if conn != nil {
		return conn, nil
	}
	conn, err := v.dial(ctx)
	if err != nil {
		return nil, err
	}
	v.Mu.Lock()
	v.conn = conn
	v.Mu.Unlock()
	return conn, nil
}

// answerTime is how long an agent may take to answer. It needs microseconds; one
// that stands still is asked about meanwhile.
const answerTime = 5 * time.Second

func (v *Session) dial(ctx context.Context) (*agent.Conn, error) {
	waiting, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	conn, err := agent.Dial(waiting, filepath.Join(v.Path(), SocketName))
	if err == nil && v.Present() {
		return conn, nil
	}
	if err == nil { // another sandbox has the name since
		return nil, errors.Join(&launch.SandboxError{ID: v.ID, Err: launch.ErrNotFound}, conn.Close())
	}
	return nil, v.Why(ctx, fmt.Errorf("connect to the sandbox's agent: %w", err))
}

// disconnect gives up a connection that does not work any more.
func (v *Session) disconnect(conn *agent.Conn) {
	v.Mu.Lock()
	if v.conn == conn {
		v.conn = nil
	}
	v.Mu.Unlock()
	_ = conn.Close() // it does not work
}

// TakeOver ends what execs of processes that are dead have left, once. While the
// sandbox stands still nothing in it can be ended.
func (v *Session) TakeOver(ctx context.Context) error {
	v.Mu.Lock()
	done := v.tookOver
	v.Mu.Unlock()
	if done || v.Paused() {
		return nil
	}
	v.Enter() // what is held for that is not to be dropped meanwhile
	defer v.Leave()
	names, err := v.Group.Leaves()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, name := range names {
		e, ok := parseLeaf(name)
		if !ok || e.ownerLives() || v.isDetached(e) {
			continue
		}
		if err := v.clear(ctx, name); err != nil {
			return err
		}
	}
	throttled, err := v.Lift.Resume()
	if err := errors.Join(v.Sweep(ctx), v.Overlay.Resume(ctx), err); err != nil {
		return err
	}
	v.Mu.Lock()
	v.tookOver = throttled // else the next command tries again
	v.Mu.Unlock()
	return errors.Join(v.resumeDeadlines(), v.resumeTold())
}

// clear ends what runs in a leaf, and removes it.
func (v *Session) clear(ctx context.Context, name string) error {
	leaf, err := v.Group.OpenLeaf(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return endLeaf(ctx, leaf)
}

// SocketName is the agent's socket in the sandbox's directory.
const SocketName = "agent.sock"
