package jobs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
)

// A toldOutputs has the output of detached execs whose end a client was told. The client may
// read the output for a while. Until then the files lie in told/ID, and count. They are
// truncated when they are removed: a client that holds a descriptor holds no space.
type toldOutputs struct {
	box    *record.Sandbox
	timers *deadlines
}

const (
	// toldName is the directory of the outputs in that of a sandbox.
	toldName = "told"
	// ToldTime is how long output stays after the end of the command was told.
	ToldTime = 10 * time.Minute
	// ToldLeast is how long output stays even if another command needs the room.
	ToldLeast = 10 * time.Second
)

// Dir is the directory of the outputs.
func (t toldOutputs) Dir() string { return filepath.Join(t.box.Path(), toldName) }

func (t toldOutputs) of(e ExecID) *detached {
	return &detached{Dir: filepath.Join(t.Dir(), e.String())}
}

func (t toldOutputs) key(e ExecID) DeadlineKey {
	return DeadlineKey{t.box.ID, t.box.Init(), e, true}
}

// add takes an exec out of those that can be attached to, and keeps its output for a while;
// false says that there is no output to keep. The exec's directory moves in one step, with
// its record. If the launcher is killed before, the exec can still be attached to.
func (t toldOutputs) add(e ExecID, d *detached) (bool, error) {
	if err := os.Mkdir(t.Dir(), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return false, errors.Join(erase.IgnoreMissing(err), d.remove()) // missing: the sandbox is removed
	}
	told, now := t.of(e), time.Now()
	err := os.Chtimes(d.Dir, now, now) // see age
	if err == nil {
		err = os.Rename(d.Dir, told.Dir)
	}
	if errors.Is(err, fs.ErrNotExist) { // another client was told, too
		return false, nil
	}
	if err != nil {
		return false, errors.Join(err, d.remove())
	}
	t.removeAfter(e, ToldTime)
	return true, erase.IgnoreMissing(os.Remove(filepath.Join(told.Dir, ExecRecordName)))
}

// dropEmpty removes the files of an exec that had no output.
func (t toldOutputs) dropEmpty(e ExecID) error {
	told := t.of(e)
	if OutputSize(told.Dir) > 0 {
		return nil
	}
	t.timers.stop(t.key(e))
	return told.remove()
}

// removeAfter removes the output of an exec later.
func (t toldOutputs) removeAfter(e ExecID, after time.Duration) {
	t.timers.arm(t.key(e), after, func() (time.Duration, bool) {
		if t.box.Present() {
			_ = t.of(e).remove() // or with the sandbox
		}
		return 0, false
	})
}

// resume arms the timers of outputs that other launchers have told about.
func (t toldOutputs) resume() error {
	all, err := execsIn(t.Dir())
	for _, e := range all {
		t.removeAfter(e, max(0, ToldTime-t.of(e).age()))
	}
	return err
}

// drop removes the outputs that are as old as least.
func (t toldOutputs) drop(least time.Duration) {
	all, err := execsIn(t.Dir())
	if err != nil {
		return
	}
	for _, e := range all {
		if d := t.of(e); d.age() >= least {
			t.timers.stop(t.key(e))
			_ = d.remove() // or with the sandbox
		}
	}
}

// age is the time since the end of the exec was told. After the clock was set back the age
// is ToldTime: nobody knows the right one.
func (d *detached) age() time.Duration {
	info, err := os.Lstat(d.Dir)
	if err != nil {
		return 0
	}
	if age := time.Since(info.ModTime()); age >= 0 {
		return age
	}
	return ToldTime
}
