package jobs

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// deadlines are the timers of detached execs: one for the timeout of each exec, and one for
// the removal of each told output. A detached exec outlives the handle that started it, so the
// launcher owns the timer. The timer stops when the exec or the output is forgotten, the
// sandbox is removed or the launcher is closed.
type deadlines struct {
	// expiring are the calls under way. close waits for them.
	expiring sync.WaitGroup

	// Mu guards the fields below.
	Mu     sync.Mutex
	closed bool
	// closing is closed when close begins.
	closing chan struct{}
	All     map[DeadlineKey]*deadline
}

// A DeadlineKey names an exec of one sandbox. A later sandbox with the same id has other keys.
type DeadlineKey struct {
	ID   string
	init process.ID
	exec ExecID
	// told says that the timer is for the output, after a client has got the result.
	told bool
}

type deadline struct{ timer *time.Timer }

// arm makes a timer that calls look after a time, and after each further time that look
// returns. If the key has a timer already, arm does nothing.
func (d *deadlines) arm(key DeadlineKey, after time.Duration, look func() (again time.Duration, more bool)) {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	if d.closed || d.All[key] != nil {
		return
	}
	entry := &deadline{}
	entry.timer = time.AfterFunc(after, func() { d.fire(key, entry, look) })
	d.All[key] = entry
}

func (d *deadlines) fire(key DeadlineKey, entry *deadline, look func() (time.Duration, bool)) {
	d.Mu.Lock()
	if d.All[key] != entry {
		d.Mu.Unlock()
		return
	}
	d.expiring.Add(1) // before close can wait
	d.Mu.Unlock()
	defer d.expiring.Done()
	again, more := look()
	d.Mu.Lock()
	defer d.Mu.Unlock()
	switch {
	case d.All[key] != entry: // stopped meanwhile
	case more:
		entry.timer.Reset(again)
	default:
		delete(d.All, key)
	}
}

// Stop stops the timers of all keys for which chosen returns true.
func (d *deadlines) Stop(chosen func(DeadlineKey) bool) {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	for key, entry := range d.All {
		if chosen(key) {
			entry.timer.Stop()
			delete(d.All, key)
		}
	}
}

// stop stops the timer of a key.
func (d *deadlines) stop(of DeadlineKey) {
	d.Stop(func(key DeadlineKey) bool { return key == of })
}

// close stops all timers, for good, and waits for the calls under way.
func (d *deadlines) close() {
	d.Mu.Lock()
	if !d.closed {
		close(d.closing)
	}
	d.closed = true
	d.Mu.Unlock()
	d.Stop(func(DeadlineKey) bool { return true })
	d.expiring.Wait()
}

const (
	// expireAgain is the pause before another try to end an exec.
	expireAgain = time.Second
	// lookAgain bounds how long a timer outlives its exec or sandbox after another process
	// has removed it.
	lookAgain = 10 * time.Minute
)

func (v *Session) deadlineKey(e ExecID) DeadlineKey { return DeadlineKey{v.ID, v.Init(), e, false} }

// armDeadline ends a detached exec at a time.
func (v *Session) armDeadline(e ExecID, at time.Time) {
	v.all.Deadlines.arm(v.deadlineKey(e), min(time.Until(at), lookAgain), func() (time.Duration, bool) { return v.expire(e, at) })
}

// Disarm stops the timer of an exec that is forgotten.
func (v *Session) Disarm(e ExecID) { v.all.Deadlines.stop(v.deadlineKey(e)) }

// resumeDeadlines arms the timers of detached execs that other processes have started.
func (v *Session) resumeDeadlines() error {
	all, err := v.DetachedExecs()
	if err != nil {
		return err
	}
	for _, e := range all {
		r, err := readExecRecord(v.execDir(e))
		if err != nil || r.Timeout == 0 {
			continue // its start was cut short, or it has no timeout
		}
		v.armDeadline(e, r.Started.Add(r.Timeout))
	}
	return nil
}

// expire ends a detached exec if its time is over. It returns the time until the next look, and
// false when there is nothing left to do.
func (v *Session) expire(e ExecID, at time.Time) (again time.Duration, more bool) {
	if !v.isDetached(e) || !v.Present() {
		return 0, false
	}
	if left := time.Until(at); left > 0 {
		return min(left, lookAgain), true
	}
	if err := v.killDetached(e); err != nil {
		return expireAgain, true
	}
	return 0, false
}

var errEnding = errors.New("the launcher is ending")

// killDetached ends a detached exec whose time is over, if it still runs. If the launcher ends
// during the grace, the next launcher ends the exec.
func (v *Session) killDetached(e ExecID) error {
	v.Enter()
	defer v.Leave()
	leaf, err := v.Group.OpenLeaf(e.Leaf())
	if err != nil {
		return erase.IgnoreMissing(err)
	}
	defer func() { _ = leaf.Close() }() // closes a descriptor only
	alive, err := leaf.Populated()
	if err != nil || !alive {
		return err
	}
	v.awaitMotion(context.Background())
	d := &detachedExec{Dir: v.execDir(e)}
	// The file notes the reason of the kill. Without the file the end looks like a SIGKILL of another process.
	_ = os.WriteFile(d.path(timedOutName), nil, 0o600)
	r, err := readExecRecord(d.Dir)
	if err != nil {
		r.Grace = spec.NoGrace
	}
	if !v.askDetached(e, leaf, r.Grace.Time(), v.all.Deadlines.closing) {
		return errEnding
	}
	ctx, cancel := context.WithTimeout(context.Background(), killTime)
	defer cancel()
	return leaf.Kill(ctx)
}
