package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
)

// The output of detached commands lies in the state root. A sandbox has a share of it: a
// number of commands, and bytes. A command takes two streams of its output limit until
// it has ended and all its output has come, and then the size of its files.
//
// A client may read the output after it was told how the command ended. Until then the
// files lie in told/ID, and count. They are truncated when they are removed: a client
// that holds a descriptor holds no space.
const (
	maxOutputs     = 320
	maxOutputBytes = 1 << 30
	// toldTime is how long output stays after the end of the command was told, and
	// toldLeast how long it stays even if another command needs the room.
	toldTime  = 10 * time.Minute
	toldLeast = 10 * time.Second
)

// A share is what the outputs of one sandbox take.
type share struct {
	// mu is held by the one that takes room, and guards what follows.
	mu sync.Mutex
	// taken is what is known of detached execs, for their records not to be read again.
	taken map[execID]room
	// asked is the exec that the agent was asked about last.
	asked execID
}

// A room is what the output of an exec takes. It is final if nothing more comes.
type room struct {
	bytes int64
	final bool
}

func (s *share) note(e execID, r room) {
	if s.taken == nil {
		s.taken = map[execID]room{}
	}
	s.taken[e] = r
}

func (v *live) told() string { return filepath.Join(v.Path(), "told") }

// roomForOutput refuses a command whose output has no room. The caller has output.mu.
func (v *live) roomForOutput(ctx context.Context, limit int64) error {
	if limit > maxOutputBytes/2 {
		return &launch.ConfigError{Reason: fmt.Sprintf("an output limit of %d bytes for each of two streams: the detached commands of a sandbox keep %d bytes together",
			limit, maxOutputBytes)}
	}
	err := v.checkShare(limit)
	if err == nil {
		return nil
	}
	v.freeOutputs(ctx)
	return v.checkShare(limit)
}

// checkShare tells whether the output of another command fits.
func (v *live) checkShare(limit int64) error {
	running, err := v.detachedExecs()
	if err != nil {
		return err
	}
	told, err := execsIn(v.told())
	if err != nil {
		return err
	}
	if len(v.output.taken) > len(running) {
		maps.DeleteFunc(v.output.taken, func(e execID, _ room) bool { return !slices.Contains(running, e) })
	}
	const wayOut = "attach to those that have ended, which tells how and frees their output a moment later, or end some"
	if len(running)+len(told) >= maxOutputs {
		return v.noRoom(fmt.Errorf("keeps the output of %d detached commands, and another one %w; %s", maxOutputs, launch.ErrUnavailable, wayOut))
	}
	var total int64
	for _, e := range told {
		total += outputSize(filepath.Join(v.told(), e.String()))
	}
	for _, e := range running {
		total += v.reserved(e)
	}
	if total+2*limit > maxOutputBytes {
		return v.noRoom(fmt.Errorf("keeps or has promised %d bytes of output of detached commands, of %d at most, and another %d %w; ask for a smaller output limit, %s",
			total, maxOutputBytes, 2*limit, launch.ErrUnavailable, wayOut))
	}
	return nil
}

func (v *live) noRoom(err error) error { return &launch.SandboxError{ID: v.ID, Err: err} }

// reserved is what the output of an exec takes, or may come to take.
func (v *live) reserved(e execID) int64 {
	if known, ok := v.output.taken[e]; ok {
		return known.bytes
	}
	r, err := readExecRecord(v.execDir(e))
	if err != nil { // its start, or its removal, was cut short
		return outputSize(v.execDir(e))
	}
	reserved := room{bytes: 2 * min(r.OutputLimit, maxOutputBytes/2)}
	v.output.note(e, reserved)
	return reserved.bytes
}

// outputSize is the size of the files in the directory of an exec.
func outputSize(dir string) (total int64) {
	for _, name := range outputNames() {
		var st unix.Stat_t
		if unix.Lstat(filepath.Join(dir, name), &st) == nil {
			total += st.Size
		}
	}
	return total
}

func outputNames() [2]string { return [2]string{"stdout", "stderr"} }

const (
	// settleOutputsTime bounds how long the agent is asked which output is complete,
	// and askOutputTime how long about one command.
	settleOutputsTime = time.Second
	askOutputTime     = 50 * time.Millisecond
)

// freeOutputs removes what nobody can ask for, and learns which output is complete. The
// caller has output.mu.
func (v *live) freeOutputs(ctx context.Context) {
	_ = v.sweep(ctx) // the check says that there is no room
	v.dropTold(toldLeast)
	all, err := v.detachedExecs()
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, settleOutputsTime)
	defer cancel()
	for _, e := range startAfter(all, v.output.asked) {
		if v.output.taken[e].final || runsIn(v.Sandbox, e.leaf()) {
			continue
		}
		if ctx.Err() != nil {
			return
		}
		v.output.asked = e
		if v.complete(ctx, e) {
			v.output.note(e, room{bytes: outputSize(v.execDir(e)), final: true})
		}
	}
}

// startAfter has those that follow the last one, by name, come first: the time is over
// before all have had their turn.
func startAfter(sorted []execID, last execID) []execID {
	name := last.String()
	next := slices.IndexFunc(sorted, func(e execID) bool { return e.String() > name })
	if next < 0 {
		return sorted
	}
	return slices.Concat(sorted[next:], sorted[:next])
}

// complete says that nothing more can come to the output of an exec that has ended.
// Another command of the sandbox may have opened its pipes.
func (v *live) complete(ctx context.Context, e execID) bool {
	ctx, cancel := context.WithTimeout(ctx, askOutputTime)
	defer cancel()
	conn, err := v.connect(ctx)
	if err != nil {
		return false
	}
	inside, err := conn.Attach(ctx, e.agent())
	if err != nil {
		return false
	}
	defer func() { _ = inside.Close() }() // it only lets go
	return inside.Drained(ctx) == nil
}

// tell takes an exec out of those that can be attached to, and leaves its output to be
// read for a while; false says that there is no output to leave. The exec's directory
// moves in one step, with its record. If the launcher is killed before, the exec can still
// be attached to.
func (v *live) tell(e execID, d *detached) (bool, error) {
	v.disarm(e)
	if err := os.Mkdir(v.told(), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return false, errors.Join(erase.IgnoreMissing(err), d.remove()) // missing: the sandbox is removed
	}
	told, now := v.toldOf(e), time.Now()
	err := os.Chtimes(d.dir, now, now) // see age
	if err == nil {
		err = os.Rename(d.dir, told.dir)
	}
	if errors.Is(err, fs.ErrNotExist) { // another client was told, too
		return false, nil
	}
	if err != nil {
		return false, errors.Join(err, d.remove())
	}
	v.armTold(e, toldTime)
	return true, erase.IgnoreMissing(os.Remove(filepath.Join(told.dir, execRecordName)))
}

// dropEmptyTold removes the files of an exec that was told about, if it had no output.
func (v *live) dropEmptyTold(e execID) error {
	told := v.toldOf(e)
	if outputSize(told.dir) > 0 {
		return nil
	}
	v.stopTimer(v.toldKey(e))
	return told.remove()
}

// armTold removes the output of an exec later.
func (v *live) armTold(e execID, after time.Duration) {
	v.all.deadlines.arm(v.toldKey(e), after, func() (time.Duration, bool) {
		if v.Present() {
			_ = v.toldOf(e).remove() // or with the sandbox
		}
		return 0, false
	})
}

func (v *live) toldOf(e execID) *detached {
	return &detached{dir: filepath.Join(v.told(), e.String())}
}

// resumeTold has the output of execs go that other launchers have told about.
func (v *live) resumeTold() error {
	all, err := execsIn(v.told())
	for _, e := range all {
		v.armTold(e, max(0, toldTime-v.toldOf(e).age()))
	}
	return err
}

// dropTold removes the output of execs that were told about some time ago.
func (v *live) dropTold(least time.Duration) {
	all, err := execsIn(v.told())
	if err != nil {
		return
	}
	for _, e := range all {
		if d := v.toldOf(e); d.age() >= least {
			v.stopTimer(v.toldKey(e))
			_ = d.remove() // or with the sandbox
		}
	}
}

// age is the time since the end of the exec was told. After the clock was set back it is
// toldTime: nobody knows how long that is ago.
func (d *detached) age() time.Duration {
	info, err := os.Lstat(d.dir)
	if err != nil {
		return 0
	}
	if age := time.Since(info.ModTime()); age >= 0 {
		return age
	}
	return toldTime
}

// truncate frees the space of the output for all that have it open.
func (d *detached) truncate() error {
	var errs []error
	for _, name := range outputNames() {
		f, err := os.OpenFile(filepath.Join(d.dir, name), os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err == nil {
			err = errors.Join(f.Truncate(0), f.Close())
		}
		errs = append(errs, erase.IgnoreMissing(err))
	}
	return errors.Join(errs...)
}

// truncateOutputs is truncate of all outputs in the directory of a sandbox.
func truncateOutputs(dir string) error {
	var errs []error
	for _, parent := range []string{filepath.Join(dir, execsName), filepath.Join(dir, "told")} {
		all, err := execsIn(parent)
		errs = append(errs, err)
		for _, e := range all {
			errs = append(errs, (&detached{dir: filepath.Join(parent, e.String())}).truncate())
		}
	}
	return errors.Join(errs...)
}
