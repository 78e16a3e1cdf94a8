package launcher

import (
	"errors"
	"io/fs"
	"sync"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A process that waits for its turn on a throttled disk can be neither killed nor
// frozen. Such work is done while the sandbox's limits of disk traffic are lifted.

// A throttleLift counts the work for which limits are lifted.
type throttleLift struct {
	// mu guards works, and is held while limits are set.
	mu    sync.Mutex
	works int
}

// unthrottled does something while the sandbox's limits of disk traffic are lifted, and
// sets the limits again, also if that fails. A launcher that is killed in between leaves
// them to the next one.
func (v *live) unthrottled(what func() error) error {
	if !termsOf(v.Current()).throttled {
		return what()
	}
	if err := v.liftThrottles(); err != nil {
		if failed := what(); failed != nil {
			return errors.Join(failed, err)
		}
		return nil
	}
	return errors.Join(what(), v.endLift())
}

func (v *live) liftThrottles() error {
	v.lift.mu.Lock()
	defer v.lift.mu.Unlock()
	if err := v.Group.LiftThrottlesIf(v.Present); err != nil {
		if v.lift.works == 0 { // those of some disks may be lifted
			err = errors.Join(err, v.setThrottlesLocked())
		}
		return err
	}
	v.lift.works++
	return nil
}

func (v *live) endLift() error {
	v.lift.mu.Lock()
	defer v.lift.mu.Unlock()
	if v.lift.works--; v.lift.works > 0 {
		return nil
	}
	return v.setThrottlesLocked()
}

// resumeThrottles sets the limits that a killed launcher may have left lifted. It sets none
// while another process changes or removes the sandbox, which may have lifted them itself:
// done is false then.
func (v *live) resumeThrottles() (done bool, err error) {
	if !termsOf(v.Current()).throttled {
		return true, nil
	}
	state, err := statedir.Hold(v.launcher.Sandboxes(), v.ID)
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
	v.lift.mu.Lock()
	defer v.lift.mu.Unlock()
	if v.lift.works > 0 {
		return false, nil
	}
	return true, v.setThrottlesLocked()
}

// setThrottlesLocked sets the limits of disk traffic that the record on disk has.
func (v *live) setThrottlesLocked() error {
	r, err := record.Read(v.Path())
	if err != nil || r.Init != v.Init() || r.Limits.IO != spec.Enforced {
		return nil //nolint:nilerr // a sandbox that is gone has no limits
	}
	var all []cgroups.Throttle
	for _, d := range r.Disks {
		l := r.Config.Limits
		all = append(all, cgroups.Throttle{Major: d.Major, Minor: d.Minor, Read: int64(l.IORead), Write: int64(l.IOWrite)})
	}
	return v.Group.SetThrottlesIf(v.Present, all)
}

// aloneIn says that nothing runs in the sandbox but in one leaf.
func (v *live) aloneIn(leaf *cgroups.Leaf) bool {
	names, err := v.Group.Leaves()
	if err != nil {
		return false
	}
	for _, name := range names {
		if name != leaf.Name() && v.runsIn(name) {
			return false
		}
	}
	return true
}

// runsIn is true where that cannot be told.
func (v *live) runsIn(name string) bool {
	leaf, err := v.Group.OpenLeaf(name)
	if err != nil {
		return erase.IgnoreMissing(err) != nil
	}
	defer func() { _ = leaf.Close() }() // it only lets go
	alive, err := leaf.Populated()
	return alive || erase.IgnoreMissing(err) != nil
}
