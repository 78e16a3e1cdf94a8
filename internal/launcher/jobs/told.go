package jobs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
)

// A toldOutputs has told outputs: the output of detached execs whose result a client has got.
// Attached clients may read the output for a while. Meanwhile the files lie in told/ID, and count
// against the sandbox's share. The removal truncates the files, so that a client with an open
// descriptor holds no space.
type toldOutputs struct {
	box    *record.Sandbox
	timers *deadlines
}

const (
	// toldName is the directory of told outputs in the directory of a sandbox.
	toldName = "told"
	// ToldTime is how long a told output stays.
	ToldTime = 10 * time.Minute
	// ToldLeast is how long a told output stays even if another command needs the room.
	ToldLeast = 10 * time.Second
)

// Dir is the directory of told outputs.
func (t toldOutputs) Dir() string { return filepath.Join(t.box.Path(), toldName) }

func (t toldOutputs) detachedExec(e ExecID) *detachedExec {
	return &detachedExec{Dir: filepath.Join(t.Dir(), e.String())}
}

func (t toldOutputs) key(e ExecID) DeadlineKey {
	return DeadlineKey{t.box.ID, t.box.Init(), e, true}
}

// add ends attaching to an exec, and keeps its output for a while. It returns false if there is
// no output to keep. The exec's directory moves in one step, with its record: if the launcher is
// killed before this step, clients can still attach to the exec.
func (t toldOutputs) add(e ExecID, d *detachedExec) (bool, error) {
	if err := os.Mkdir(t.Dir(), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return false, errors.Join(erase.IgnoreMissing(err), d.remove()) // missing: the sandbox is removed
	}
	told, now := t.detachedExec(e), time.Now()
	err := os.Chtimes(d.Dir, now, now) // age reads this time
	if err == nil {
		err = os.Rename(d.Dir, told.Dir)
	}
	if errors.Is(err, fs.ErrNotExist) { // another client has got the result, too
		return false, nil
	}
	if err != nil {
		return false, errors.Join(err, d.remove())
	}
	t.removeAfter(e, ToldTime)
	return true, erase.IgnoreMissing(os.Remove(filepath.Join(told.Dir, ExecRecordName)))
}

// dropEmpty removes the files of an exec without output.
func (t toldOutputs) dropEmpty(e ExecID) error {
	told := t.detachedExec(e)
	if OutputSize(told.Dir) > 0 {
		return nil
	}
	t.timers.stop(t.key(e))
	return told.remove()
}

// removeAfter arms the timer that removes the output of an exec.
func (t toldOutputs) removeAfter(e ExecID, after time.Duration) {
	t.timers.arm(t.key(e), after, func() (time.Duration, bool) {
		if t.box.Present() {
			_ = t.detachedExec(e).remove() // after an error the files go with the sandbox
		}
		return 0, false
	})
}

// resume arms the timers of the told outputs of other launchers.
func (t toldOutputs) resume() error {
	all, err := execsIn(t.Dir())
	for _, e := range all {
		t.removeAfter(e, max(0, ToldTime-t.detachedExec(e).age()))
	}
	return err
}

// drop removes the told outputs that are at least this old.
func (t toldOutputs) drop(least time.Duration) {
	all, err := execsIn(t.Dir())
	if err != nil {
		return
	}
	for _, e := range all {
		if d := t.detachedExec(e); d.age() >= least {
			t.timers.stop(t.key(e))
			_ = d.remove() // after an error the files go with the sandbox
		}
	}
}

// age is the time since a client got the result of the exec. If the clock was set back, the right
// age is unknown, and age returns ToldTime.
func (d *detachedExec) age() time.Duration {
	info, err := os.Lstat(d.Dir)
	if err != nil {
		return 0
	}
	if age := time.Since(info.ModTime()); age >= 0 {
		return age
	}
	return ToldTime
}
