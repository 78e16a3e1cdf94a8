package launcher

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

// A live is what this process keeps of a sandbox that it works with, for the
// next exec to be fast: the connection to the agent, cgroups made ahead. All of
// it can be had again at any time, and is dropped when nothing has run for a
// while: an idle sandbox costs this process some memory, and one without
// handles not even that.
type live struct {
	*record.Sandbox
	all *sessions

	// Of launcher.mu: how many handles there are, and which record was read.
	users   int
	version record.Version

	overlay *overlay.Files

	// lift is of the limits of disk traffic. Its mutex is taken before mu.
	lift *throttle.Lift

	files *filewatch.Watcher

	// output is of detached commands. Its mutex is taken before mu.
	output share

	// mu guards what follows.
	mu sync.Mutex
	// conn is nil until it is needed.
	conn *agent.Conn
	// connecting is held by the one that connects: a channel, for a context to
	// interrupt the wait for it.
	connecting chan struct{}
	// tookOver says that what others left was looked at.
	tookOver bool
	leaves   leafPool
	// running are this process's execs that have not ended, by their ids, without the
	// detached ones: any number of handles may be of one of these.
	running map[string]*Process
	// detached counts the detached ones that it has started; starting are those
	// that the agent need not know yet.
	detached int
	starting map[execID]bool
	// busy counts what goes on and needs the connection or the group.
	busy int
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

func newLive(l *sessions, id string, r record.Record, v record.Version, group *cgroups.Group) *live {
	box := record.NewSandbox(l.Roots, id, group, r)
	lift := throttle.New(box)
	return &live{
		Sandbox: box, all: l, users: 1, version: v,
		files: filewatch.New(box, &l.groups), lift: lift, overlay: l.layers.Files(box, lift),
		connecting: make(chan struct{}, 1), running: map[string]*Process{},
		starting: map[execID]bool{},
	}
}

// refresh takes a record that was written since, and returns false if that is
// another sandbox's. The caller has launcher.mu.
func (v *live) refresh(r record.Record, now record.Version) bool {
	if !v.Sandbox.Refresh(r) {
		return false
	}
	v.version = now
	v.unwatch() // there may be another workspace
	return true
}

// adopt takes over the connection that the sandbox was made with.
func (v *live) adopt(conn *agent.Conn) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.conn, v.tookOver = conn, true
	v.rest()
}

// enter says that something begins which needs what is held; leave says that it
// is over.
func (v *live) enter() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.busy++
}

func (v *live) leave() {
	v.mu.Lock()
	v.busy--
	last := v.busy == 0 && v.gone
	v.rest()
	v.mu.Unlock()
	if last {
		v.drop()
	}
}

// rest has what is held dropped after a while. The caller has mu.
func (v *live) rest() {
	v.last = time.Now()
	if v.busy == 0 && v.idle == nil && !v.gone {
		v.idle = time.AfterFunc(idleTime, v.settle)
	}
}

// settle drops what is held, unless something went on meanwhile.
func (v *live) settle() {
	v.mu.Lock()
	left := idleTime - time.Since(v.last)
	again := v.busy == 0 && left > 0 && !v.gone
	if again {
		v.idle.Reset(left)
	} else {
		v.idle = nil
	}
	v.mu.Unlock()
	if !again {
		v.drop()
	}
}

// release gives up one handle.
func (v *live) release() {
	v.all.mu.Lock()
	v.users--
	v.all.mu.Unlock()
	gone := !v.Init().Lives()
	v.mu.Lock()
	v.gone = v.gone || gone
	v.rest()
	v.mu.Unlock()
	if gone {
		init := v.Init()
		v.all.deadlines.stop(func(key deadlineKey) bool { return key.id == v.ID && key.init == init })
		v.drop()
	}
}

// drop lets go of what is held, if nothing goes on. Of a tied sandbox that is up
// the connection stays, since it is what ties it.
func (v *live) drop() {
	v.all.mu.Lock()
	v.mu.Lock()
	var conn *agent.Conn
	var leaves []*cgroups.Leaf
	idle := v.busy == 0
	if idle {
		leaves = v.leaves.empty()
		if !v.Current().Tied || v.gone {
			conn, v.conn = v.conn, nil
		}
		if v.users == 0 && v.conn == nil && v.all.live[v.ID] == v {
			delete(v.all.live, v.ID)
		}
		if v.idle != nil {
			v.idle.Stop()
			v.idle = nil
		}
		v.busy++ // until all is let go of: the group is needed for that
	}
	v.mu.Unlock()
	v.all.mu.Unlock()
	if !idle {
		return
	}
	v.unwatch()
	if conn != nil {
		_ = conn.Close() // nothing more is wanted of it
	}
	v.CloseState()
	v.discard(leaves)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.busy--
	if v.busy == 0 {
		_ = v.Group.Close() // as above
	}
}

// unwatch stops watching the sandbox's files.
func (v *live) unwatch() { v.files.Stop(v.all.tending) }

// connect returns the connection to the agent.
func (v *live) connect(ctx context.Context) (*agent.Conn, error) {
	v.mu.Lock()
	conn := v.conn
	v.mu.Unlock()
	if conn != nil {
		return conn, nil
	}
	select {
	case v.connecting <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-v.connecting }()
	v.mu.Lock()
	conn = v.conn
	v.mu.Unlock()
	if conn != nil {
		return conn, nil
	}
	conn, err := v.dial(ctx)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	v.conn = conn
	v.mu.Unlock()
	return conn, nil
}

// answerTime is how long an agent may take to answer. It needs microseconds; one
// that stands still is asked about meanwhile.
const answerTime = 5 * time.Second

func (v *live) dial(ctx context.Context) (*agent.Conn, error) {
	waiting, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	conn, err := agent.Dial(waiting, filepath.Join(v.Path(), socketName))
	if err == nil && v.Present() {
		return conn, nil
	}
	if err == nil { // another sandbox has the name since
		return nil, errors.Join(&launch.SandboxError{ID: v.ID, Err: launch.ErrNotFound}, conn.Close())
	}
	return nil, v.Why(ctx, fmt.Errorf("connect to the sandbox's agent: %w", err))
}

// disconnect gives up a connection that does not work any more.
func (v *live) disconnect(conn *agent.Conn) {
	v.mu.Lock()
	if v.conn == conn {
		v.conn = nil
	}
	v.mu.Unlock()
	_ = conn.Close() // it does not work
}

// takeOver ends what execs of processes that are dead have left, once. While the
// sandbox stands still nothing in it can be ended.
func (v *live) takeOver(ctx context.Context) error {
	v.mu.Lock()
	done := v.tookOver
	v.mu.Unlock()
	if done || v.Paused() {
		return nil
	}
	v.enter() // what is held for that is not to be dropped meanwhile
	defer v.leave()
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
	throttled, err := v.lift.Resume()
	if err := errors.Join(v.sweep(ctx), v.overlay.Resume(ctx), err); err != nil {
		return err
	}
	v.mu.Lock()
	v.tookOver = throttled // else the next command tries again
	v.mu.Unlock()
	return errors.Join(v.resumeDeadlines(), v.resumeTold())
}

// clear ends what runs in a leaf, and removes it.
func (v *live) clear(ctx context.Context, name string) error {
	leaf, err := v.Group.OpenLeaf(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return endLeaf(ctx, leaf)
}

// socketName is the agent's socket in the sandbox's directory.
const socketName = "agent.sock"
