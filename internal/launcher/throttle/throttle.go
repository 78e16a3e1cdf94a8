// Package throttle knows the disks that a sandbox's limits of disk traffic apply to. It lifts the limits
// while a process has to end or freeze, and sets them again.
package throttle

import (
	"errors"
	"io/fs"
	"sync"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A process that waits for a throttled disk can be neither killed nor frozen. So the limits of
// disk traffic are lifted while processes have to end or freeze.

// A Lift lifts the limits of one sandbox, for any number of calls at a time.
type Lift struct {
	box *record.Sandbox
	// mu guards works, and is held while limits are set.
	mu    sync.Mutex
	works int
}

func (t *Lift) limited() bool { return t.box.Current().Config.Limits.Throttled() }

// New returns the lift of a sandbox.
func New(box *record.Sandbox) *Lift { return &Lift{box: box} }

// Without calls the function while the sandbox's limits of disk traffic are lifted, and
// then sets the limits again, also after an error. If the launcher is killed in between,
// the next launcher sets them.
func (t *Lift) Without(what func() error) error {
	if !t.limited() {
		return what()
	}
	if err := t.liftThrottles(); err != nil {
		if failed := what(); failed != nil {
			return errors.Join(failed, err)
		}
		return nil
	}
	return errors.Join(what(), t.endLift())
}

func (t *Lift) liftThrottles() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.box.Group.LiftThrottlesIf(t.box.Present); err != nil {
		if t.works == 0 { // those of some disks may be lifted
			err = errors.Join(err, t.setThrottlesLocked())
		}
		return err
	}
	t.works++
	return nil
}

func (t *Lift) endLift() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.works--; t.works > 0 {
		return nil
	}
	return t.setThrottlesLocked()
}

// Resume sets the limits that a killed launcher may have left lifted. It sets none
// while another process changes or removes the sandbox, which may have lifted them itself:
// done is false then.
func (t *Lift) Resume() (done bool, err error) {
	if !t.limited() {
		return true, nil
	}
	state, err := statedir.Hold(t.box.Sandboxes(), t.box.ID)
	if errors.Is(err, statedir.ErrHeld) || errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer state.Release()
	if statedir.RemovalBegun(state.Path) {
		return false, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.works > 0 {
		return false, nil
	}
	return true, t.setThrottlesLocked()
}

// setThrottlesLocked sets the limits of disk traffic that the record on disk has.
func (t *Lift) setThrottlesLocked() error {
	r, err := record.Read(t.box.Path())
	if err != nil || r.Init != t.box.Init() || r.Limits.IO != spec.Enforced {
		return nil //nolint:nilerr // a sandbox that is gone has no limits
	}
	var all []cgroups.Throttle
	for _, d := range r.Disks {
		l := r.Config.Limits
		all = append(all, cgroups.Throttle{Major: d.Major, Minor: d.Minor, Read: int64(l.IORead), Write: int64(l.IOWrite)})
	}
	return t.box.Group.SetThrottlesIf(t.box.Present, all)
}
