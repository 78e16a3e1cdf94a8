package jobs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
)

// The output of detached commands lies in the state root. Each sandbox has a share of the space:
// a number of commands, and bytes. A command takes twice its output limit, for two streams, until
// it has ended and its output is complete. Then it takes the size of its files.
const (
	MaxOutputs     = 320
	MaxOutputBytes = 1 << 30
)

// A share is the room that the outputs of one sandbox take.
type share struct {
	// Mu is held while room is taken, and guards the fields below.
	Mu sync.Mutex
	// Taken has the room of detached execs, so that their records are not read again.
	Taken map[ExecID]room
	// asked is the exec of the last question to the agent.
	asked ExecID
}

// A room is the space that the output of an exec takes. It is final if no more output comes.
type room struct {
	bytes int64
	final bool
}

// roomForOutput refuses a command if its output may not fit. The caller must hold Output.Mu.
func (v *Session) roomForOutput(ctx context.Context, limit int64) error {
	if limit > MaxOutputBytes/2 {
		return &fault.ConfigError{Reason: fmt.Sprintf("an output limit of %d bytes for each of two streams: all detached commands of a sandbox together keep at most %d bytes",
			limit, MaxOutputBytes)}
	}
	err := v.checkShare(limit)
	if err == nil {
		return nil
	}
	v.freeOutputs(ctx)
	return v.checkShare(limit)
}

// checkShare tells whether the output of another command fits.
func (v *Session) checkShare(limit int64) error {
	running, err := v.DetachedExecs()
	if err != nil {
		return err
	}
	told, err := execsIn(v.Told.Dir())
	if err != nil {
		return err
	}
	if len(v.Output.Taken) > len(running) {
		maps.DeleteFunc(v.Output.Taken, func(e ExecID, _ room) bool { return !slices.Contains(running, e) })
	}
	const wayOut = "attach to ended commands and take their results, which frees their output a moment later, or end some commands"
	if len(running)+len(told) >= MaxOutputs {
		return &fault.SandboxError{ID: v.ID, Err: fmt.Errorf("keeps the output of %d detached commands, and another one %w; %s",
			MaxOutputs, fault.ErrUnavailable, wayOut)}
	}
	var total int64
	for _, e := range told {
		total += OutputSize(v.Told.detachedExec(e).Dir)
	}
	for _, e := range running {
		total += v.reserved(e)
	}
	if total+2*limit > MaxOutputBytes {
		return &fault.SandboxError{ID: v.ID, Err: fmt.Errorf(
			"keeps or has promised %d bytes of output of detached commands, of %d at most, and another %d %w; ask for a smaller output limit, %s",
			total, MaxOutputBytes, 2*limit, fault.ErrUnavailable, wayOut)}
	}
	return nil
}

// reserved is the room that the output of an exec takes, or may take later.
func (v *Session) reserved(e ExecID) int64 {
	if known, ok := v.Output.Taken[e]; ok {
		return known.bytes
	}
	r, err := readExecRecord(v.execDir(e))
	if err != nil { // its start, or its removal, was cut short
		return OutputSize(v.execDir(e))
	}
	reserved := room{bytes: 2 * min(r.OutputLimit, MaxOutputBytes/2)}
	v.Output.Taken[e] = reserved
	return reserved.bytes
}

// OutputSize is the size of the files in the directory of an exec.
func OutputSize(dir string) (total int64) {
	for _, name := range outputNames() {
		if info, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			total += outputIn(info.Size())
		}
	}
	return total
}

// outputIn is how many bytes of output a file of a size has at most. The header and the times before
// them do not count against the share: MaxOutputs bounds those.
func outputIn(size int64) int64 {
	if size > streams.Start {
		return size - streams.Start
	}
	return size // of an older agent, or a file in the making
}

func outputNames() [2]string { return [2]string{"stdout", "stderr"} }

const (
	// SettleOutputsTime bounds the questions to the agent about complete output, together.
	SettleOutputsTime = time.Second
	// AskOutputTime bounds the question about one command.
	AskOutputTime = 50 * time.Millisecond
)

// freeOutputs removes output that nobody can ask for, and notes the final size of complete
// output. The caller must hold Output.Mu.
func (v *Session) freeOutputs(ctx context.Context) {
	_ = v.Sweep(ctx) // without room the next check fails
	v.Told.drop(ToldLeast)
	all, err := v.DetachedExecs()
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, SettleOutputsTime)
	defer cancel()
	for _, e := range startAfter(all, v.Output.asked) {
		if v.Output.Taken[e].final || runsIn(v.Sandbox, e.Leaf()) {
			continue
		}
		if ctx.Err() != nil {
			return
		}
		v.Output.asked = e
		if v.complete(ctx, e) {
			v.Output.Taken[e] = room{bytes: OutputSize(v.execDir(e)), final: true}
		}
	}
}

// startAfter rotates the list, so that the list starts after the exec last. The time may not
// suffice for all execs, and the next call goes on where this call has stopped.
func startAfter(sorted []ExecID, last ExecID) []ExecID {
	name := last.String()
	next := slices.IndexFunc(sorted, func(e ExecID) bool { return e.String() > name })
	if next < 0 {
		return sorted
	}
	return slices.Concat(sorted[next:], sorted[:next])
}

// complete says that the output of an ended exec cannot grow any more. It can still grow while
// another command of the sandbox has opened the exec's pipes.
func (v *Session) complete(ctx context.Context, e ExecID) bool {
	ctx, cancel := context.WithTimeout(ctx, AskOutputTime)
	defer cancel()
	conn, err := v.Connect(ctx)
	if err != nil {
		return false
	}
	inside, err := conn.Attach(ctx, e.agent())
	if err != nil {
		return false
	}
	defer func() { _ = inside.Close() }() // closes the connection only
	return inside.Drained(ctx) == nil
}

// truncate frees the space of the output for all that have it open.
func (d *detachedExec) truncate() error {
	var errs []error
	for _, name := range outputNames() {
		file := filepath.Join(d.Dir, name)
		if info, err := os.Lstat(file); err == nil && !info.Mode().IsRegular() {
			continue // a damaged state root must not keep the sandbox from its removal
		}
		f, err := os.OpenFile(file, os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err == nil {
			err = errors.Join(f.Truncate(0), f.Close())
		}
		errs = append(errs, erase.IgnoreMissing(err))
	}
	return errors.Join(errs...)
}

// TruncateOutputs is truncate of all outputs in the directory of a sandbox.
func TruncateOutputs(dir string) error {
	var errs []error
	for _, parent := range []string{filepath.Join(dir, execsName), filepath.Join(dir, toldName)} {
		all, err := execsIn(parent)
		errs = append(errs, err)
		for _, e := range all {
			errs = append(errs, (&detachedExec{Dir: filepath.Join(parent, e.String())}).truncate())
		}
	}
	return errors.Join(errs...)
}
