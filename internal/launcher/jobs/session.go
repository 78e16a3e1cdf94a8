package jobs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/overlay"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/agent"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/filewatch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/throttle"
)

// A Session is the part of a sandbox that this process keeps so that the next exec is
// fast: the connection to the agent, and cgroups made ahead. The session can get all of
// these again at any time, so it drops them when nothing has run for a while. An idle
// sandbox costs this process some memory, and a sandbox without handles costs nothing.
type Session struct {
	*record.Sandbox
	all *Sessions

	// users counts the handles. Sessions.mu guards it.
	users int

	Overlay *overlay.Files

	// Lift lifts the limits of disk traffic. Its mutex is taken before Mu.
	Lift *throttle.Lift

	Files *filewatch.Watcher

	// Leaves has a mutex that is taken after Mu.
	Leaves leafPool

	Told toldOutputs

	host hostView

	// starting has the ids of the detached execs whose start is under way. The agent may not know them yet.
	starting sync.Map

	// Output bounds the output of detached commands. Its mutex is taken before Mu.
	Output share

	// Mu guards the fields below.
	Mu sync.Mutex
	// conn is nil until it is needed.
	conn *agent.Conn
	// connecting is held while a goroutine connects.
	connecting *semaphore.Weighted
	// tookOver says that TakeOver has succeeded.
	tookOver bool
	// running are the execs of this process that have not ended, by id. Detached execs are not
	// among them, since one exec may have any number of handles.
	running map[string]*Process
	// detached counts the detached execs that this process has started.
	detached int
	// Busy counts the calls that need the connection or the group.
	Busy int
	// idle fires idleTime after the last call. It is nil before the first call.
	idle *time.Timer
	// gone says that the sandbox is no longer up.
	gone bool
	// due says that the idle timer, or a Drop if gone, was due while Busy was above 0.
	due bool
}

// idleTime is how long an idle session keeps its connection and its cgroups.
const idleTime = 3 * time.Second

func newSession(l *Sessions, id string, r record.Record, v record.Version, group *cgroups.Group) *Session {
	box := record.NewSandbox(l.Roots, id, group, r)
	box.Refresh(r, v)
	lift := throttle.New(box)
	return &Session{
		Sandbox: box, all: l, users: 1,
		Files: filewatch.New(box, &l.Groups, l.Layers.OpenImage), Lift: lift, Overlay: l.Layers.Files(box, lift),
		connecting: semaphore.NewWeighted(1), running: map[string]*Process{},
		Leaves: leafPool{box: box, newExec: l.newExec},
		Told:   toldOutputs{box: box, timers: &l.Deadlines},
		Output: share{Taken: map[ExecID]room{}},
	}
}

// Renew takes the record that another process has written since the last look. If there is none,
// Renew costs a stat(2). It ignores a sandbox that is gone: the caller's next step notices this.
func (v *Session) Renew() error {
	now, err := record.VersionOf(v.Path())
	if err != nil || v.IsAt(now) {
		return erase.IgnoreMissing(err)
	}
	r, err := record.Read(v.Path())
	if err == nil {
		v.refresh(r, now)
	}
	return erase.IgnoreMissing(err)
}

// refresh takes a newer record. It returns false if the record is of another sandbox.
func (v *Session) refresh(r record.Record, now record.Version) bool {
	if !v.Refresh(r, now) {
		return false
	}
	v.Unwatch() // there may be another workspace
	return true
}

// Adopt takes over the connection that the sandbox was made with. If another call has connected meanwhile, Adopt
// keeps that connection, which the call may use. A tied sandbox ends with the connection that it was made with, and
// keeps this one.
func (v *Session) Adopt(conn *agent.Conn) {
	v.Mu.Lock()
	defer v.Mu.Unlock()
	if v.conn != nil && !v.Current().Tied {
		_ = conn.Close() // nobody uses the connection any more
		conn = v.conn
	}
	v.conn, v.tookOver = conn, true
	v.startIdleTimer()
}

// MakeFirstLeaf makes the leaf of the first exec of a new sandbox that has none, in the background. Config.Tending
// counts this.
func (v *Session) MakeFirstLeaf() {
	if v.Leaves.hasSpare() {
		return
	}
	v.Enter()
	makeLeaf := v.Leaves.announceFirst()
	v.all.Tending.Go(func() {
		defer v.Leave()
		makeLeaf()
	})
}

// Enter begins a call that needs the connection or the group. Each Enter needs a [Session.Leave].
func (v *Session) Enter() {
	v.Mu.Lock()
	defer v.Mu.Unlock()
	v.Busy++
}

// Leave ends the call that [Session.Enter] began.
func (v *Session) Leave() {
	v.Mu.Lock()
	v.Busy--
	drop := v.Busy == 0 && v.gone
	v.startIdleTimer()
	v.Mu.Unlock()
	if drop {
		v.Drop()
	}
}

// startIdleTimer starts the timer that drops the connection and the cgroups, or starts it again. A timer that fires
// during a call does nothing, and the end of the call starts it again. The end of a Drop starts the timer for the calls
// that have ended during the Drop. The caller must hold Mu.
func (v *Session) startIdleTimer() {
	switch {
	case v.Busy > 0:
		v.due = true
	case v.gone:
	case v.idle == nil:
		v.idle = time.AfterFunc(idleTime, v.Drop)
	default:
		v.idle.Reset(idleTime)
	}
}

// makeAhead makes the leaf of the next exec, and removes used leaves meanwhile. It is called
// within a call that [Session.Enter] has begun.
func (v *Session) makeAhead() {
	if used := v.Leaves.takeUsed(); len(used) > 0 {
		v.Enter()
		v.all.Tending.Go(func() {
			defer v.Leave()
			discard(v.Sandbox, used)
		})
	}
	v.Leaves.makeAhead()
}

// Release gives up one handle.
func (v *Session) Release() {
	v.all.mu.Lock()
	v.users--
	v.all.mu.Unlock()
	gone := !v.Init().Lives()
	v.Mu.Lock()
	v.gone = v.gone || gone
	v.startIdleTimer()
	v.Mu.Unlock()
	if gone {
		init := v.Init()
		v.all.Deadlines.Stop(func(key DeadlineKey) bool { return key.ID == v.ID && key.init == init })
		v.Drop()
	}
}

// Drop drops the connection and the cgroups, if no call is under way. The connection of a
// tied sandbox that is up stays, since it ties the sandbox.
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
		if v.users == 0 && v.conn == nil && v.all.known[v.ID] == v {
			delete(v.all.known, v.ID)
		}
		if v.idle != nil {
			v.idle.Stop()
		}
		v.Busy++ // keeps the group open: the removal of the leaves needs it
	}
	v.due = !idle && (v.due || v.gone)
	v.Mu.Unlock()
	v.all.mu.Unlock()
	if !idle {
		return
	}
	v.Unwatch()
	if conn != nil {
		_ = conn.Close() // nobody uses the connection any more
	}
	v.CloseState()
	discard(v.Sandbox, leaves)
	if v.endDrop() {
		v.Drop()
	}
}

// endDrop ends a Drop. It says whether another Drop must follow: the sandbox is gone, and calls that have ended during
// the Drop can have left a connection and leaves.
func (v *Session) endDrop() (again bool) {
	v.Mu.Lock()
	defer v.Mu.Unlock()
	v.Busy--
	switch {
	case v.Busy > 0: // the end of the last call starts the timer or a Drop
	case !v.due:
		_ = v.Group.Close() // nobody uses the group now
	case v.gone:
		return true
	default: // the leaves of the calls need the open group
		v.startIdleTimer()
	}
	return false
}

// Unwatch stops watching the sandbox's files.
func (v *Session) Unwatch() { v.Files.Stop(v.all.Tending) }

// connection is the present connection to the agent, or nil.
func (v *Session) connection() *agent.Conn {
	v.Mu.Lock()
	defer v.Mu.Unlock()
	return v.conn
}

// Connect returns the connection to the agent.
func (v *Session) Connect(ctx context.Context) (*agent.Conn, error) {
	if conn := v.connection(); conn != nil {
		return conn, nil
	}
	if err := v.connecting.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer v.connecting.Release(1)
	if conn := v.connection(); conn != nil {
		return conn, nil
	}
	conn, err := v.dial(ctx)
	if err != nil {
		return nil, err
	}
	v.Mu.Lock()
	defer v.Mu.Unlock()
	if v.conn != nil { // another call has just made the sandbox
		_ = conn.Close() // nobody has used it
		return v.conn, nil
	}
	v.conn = conn
	return conn, nil
}

// answerTime is how long an agent may take to answer. An agent needs microseconds, unless the
// sandbox is frozen.
const answerTime = 5 * time.Second

func (v *Session) dial(ctx context.Context) (*agent.Conn, error) {
	waiting, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	conn, err := agent.Dial(waiting, filepath.Join(v.Path(), SocketName))
	if err == nil && v.Present() {
		return conn, nil
	}
	if err == nil { // another sandbox has the name now
		return nil, errors.Join(&fault.SandboxError{ID: v.ID, Err: fault.ErrNotFound}, conn.Close())
	}
	return nil, v.Why(ctx, unanswered(waiting, err))
}

// unanswered names the way out if the time to wait for an agent's answer is over.
func unanswered(waiting context.Context, err error) error {
	if waiting.Err() == nil {
		return err
	}
	return fmt.Errorf("its PID 1 has not answered for %s: it is stopped, or the host is overloaded; try again, or remove the sandbox with down", answerTime)
}

// disconnect drops a connection that does not work any more.
func (v *Session) disconnect(conn *agent.Conn) {
	v.Mu.Lock()
	if v.conn == conn {
		v.conn = nil
	}
	v.Mu.Unlock()
	_ = conn.Close() // the connection is broken anyway
}

// TakeOver cleans up, once, after launchers that have died: it kills the commands that they
// left running, and goes on with their unfinished work. In a paused sandbox it does nothing,
// because no process can be ended there, nor in another pid namespace, whose process numbers mean nothing here.
func (v *Session) TakeOver(ctx context.Context) error {
	v.Mu.Lock()
	done := v.tookOver
	v.Mu.Unlock()
	if done || v.Paused() || !v.Init().IsHere() {
		return nil
	}
	v.Enter() // the connection must not be dropped meanwhile
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
	swept := v.Sweep(ctx)
	if errors.Is(swept, fault.ErrPaused) { // since the check above; the next caller tries again
		return nil
	}
	limitsHold, err := v.Lift.Resume()
	if err := errors.Join(swept, v.Overlay.Resume(ctx), err); err != nil {
		return err
	}
	v.Mu.Lock()
	v.tookOver = limitsHold // false: another process has lifted the limits, and the next command tries again
	v.Mu.Unlock()
	return errors.Join(v.resumeDeadlines(), v.Told.resume())
}

// awaitMotion waits while the runtime itself keeps the processes of the sandbox still, until ctx ends.
// If the process that does this was killed, awaitMotion ends its work. Frozen processes cannot end on
// v1, and PID 1 cannot report ends.
func (v *Session) awaitMotion(ctx context.Context) {
	for v.Frozen() && !v.Paused() && ctx.Err() == nil {
		err := v.all.Alone(ctx, v, func() error { return nil })
		if !errors.Is(err, statedir.ErrHeld) {
			return // the next step of the caller shows a failure
		}
	}
}

// clear kills all processes of a leaf, and removes the leaf.
func (v *Session) clear(ctx context.Context, name string) error {
	leaf, err := v.Group.OpenLeaf(name)
	if err != nil {
		return erase.IgnoreMissing(err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
	defer cancel()
	if err := errors.Join(leaf.Kill(ctx), removeLeaf(ctx, v.Sandbox, leaf)); err != nil {
		return fmt.Errorf("end exec %s: %w", name, err)
	}
	return nil
}

// SocketName is the agent's socket in the sandbox's directory.
const SocketName = "agent.sock"
