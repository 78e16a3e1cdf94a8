package launcher

import (
	"context"
	"errors"
	"io/fs"
	"sync"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
)

// Deadlines are the timers of detached execs: one for each exec, and one for each output
// that was told about. A detached exec outlives the handle that started it, so that the
// Launcher owns the timer. The timer stops when the exec or the output is forgotten, the
// sandbox is removed or the Launcher is closed.
type deadlines struct {
	// expiring are the calls under way. close waits for them.
	expiring sync.WaitGroup

	// mu guards what follows.
	mu     sync.Mutex
	closed bool
	all    map[deadlineKey]*deadline
}

// A deadlineKey names an exec of one sandbox, and not of a later one with its id.
type deadlineKey struct {
	id   string
	init process.ID
	exec execID
	// told is of the output, once the exec's end was told.
	told bool
}

type deadline struct{ timer *time.Timer }

// arm calls look after a time, and again each time that look returns another time. A
// key that has a timer keeps it.
func (d *deadlines) arm(key deadlineKey, after time.Duration, look func() (again time.Duration, more bool)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.all[key] != nil {
		return
	}
	if d.all == nil {
		d.all = map[deadlineKey]*deadline{}
	}
	entry := &deadline{}
	entry.timer = time.AfterFunc(after, func() { d.fire(key, entry, look) })
	d.all[key] = entry
}

func (d *deadlines) fire(key deadlineKey, entry *deadline, look func() (time.Duration, bool)) {
	d.mu.Lock()
	if d.all[key] != entry {
		d.mu.Unlock()
		return
	}
	d.expiring.Add(1) // before close can wait
	d.mu.Unlock()
	defer d.expiring.Done()
	again, more := look()
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.all[key] != entry: // stopped meanwhile
	case more:
		entry.timer.Reset(again)
	default:
		delete(d.all, key)
	}
}

// stop stops the timers whose keys are chosen.
func (d *deadlines) stop(chosen func(deadlineKey) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for key, entry := range d.all {
		if chosen(key) {
			entry.timer.Stop()
			delete(d.all, key)
		}
	}
}

// close stops all timers, for good, and waits for the calls under way.
func (d *deadlines) close() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.stop(func(deadlineKey) bool { return true })
	d.expiring.Wait()
}

const (
	// expireAgain is the pause before another try to end an exec.
	expireAgain = time.Second
	// lookAgain bounds how long a timer outlives its exec or sandbox, where another
	// process has removed them.
	lookAgain = 10 * time.Minute
)

func (v *live) deadlineKey(e execID) deadlineKey { return deadlineKey{v.ID, v.Init(), e, false} }

func (v *live) toldKey(e execID) deadlineKey { return deadlineKey{v.ID, v.Init(), e, true} }

// armDeadline ends a detached exec at a time.
func (v *live) armDeadline(e execID, at time.Time) {
	v.all.deadlines.arm(v.deadlineKey(e), min(time.Until(at), lookAgain), func() (time.Duration, bool) { return v.expire(e, at) })
}

// disarm stops the timer of an exec that is forgotten.
func (v *live) disarm(e execID) { v.stopTimer(v.deadlineKey(e)) }

func (v *live) stopTimer(of deadlineKey) {
	v.all.deadlines.stop(func(key deadlineKey) bool { return key == of })
}

// resumeDeadlines arms the timers of detached execs that other processes have started.
func (v *live) resumeDeadlines() error {
	all, err := v.detachedExecs()
	if err != nil {
		return err
	}
	for _, e := range all {
		r, err := readExecRecord(v.execDir(e))
		if err != nil || r.Timeout == 0 {
			continue // its start was cut short, or it has none
		}
		v.armDeadline(e, r.Started.Add(r.Timeout))
	}
	return nil
}

// expire ends a detached exec if it is time, and tells when to look again. Nothing is
// left to do once the exec has ended.
func (v *live) expire(e execID, at time.Time) (again time.Duration, more bool) {
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

// killDetached ends a detached exec whose time is over, if it still runs.
func (v *live) killDetached(e execID) error {
	v.enter()
	defer v.leave()
	leaf, err := v.Group.OpenLeaf(e.leaf())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = leaf.Close() }() // it only lets go
	alive, err := leaf.Populated()
	if err != nil || !alive {
		return err
	}
	(&detached{dir: v.execDir(e)}).markTimedOut()
	ctx, cancel := context.WithTimeout(context.Background(), killTime)
	defer cancel()
	return leaf.Kill(ctx)
}
