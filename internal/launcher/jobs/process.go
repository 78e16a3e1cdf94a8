package jobs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/overlay"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/agent"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/filewatch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A Process is an exec: a command that was started in a sandbox, and runs or has ended. It is
// safe for concurrent use. The caller must close it.
//
// An exec ends when its command ends. The runtime then kills all processes that the command has
// left running, also daemons. So a Result is complete and final. For work that goes on, use a
// detached exec.
type Process struct {
	Live      *Session
	Exec      ExecID
	Leaf      *cgroups.Leaf
	under     leafTerms
	Conn      *agent.Conn
	Inside    *agent.Process
	Args      []string
	limits    spec.Limits
	Config    record.Record
	StartedAt time.Time
	Timeout   time.Duration
	files     *filewatch.Recording
	// call is the program that the agent tries to execute.
	call process.Call
	// before is the traffic of the sandbox before the start: see trafficOf.
	before *spec.Traffic
	// baseline is the state of the sandbox before the start. Zero: the command was detached by an ended launcher.
	baseline baseline
	// Transaction is nil for an exec without a transaction.
	Transaction *overlay.Transaction
	// joining is closed when the writes of a transaction begin to join. It is nil for other execs.
	joining chan struct{}
	// Kept is the state of a detached exec, nil for other execs.
	Kept *detachedExec
	// farewell is the grace of the exec.
	farewell farewell

	// deadline fires after Timeout. It is nil for a detached exec, whose timer is in
	// Sessions.Deadlines.
	deadline *time.Timer
	timedOut atomic.Bool
	// gaveUp says that Terminate was called.
	gaveUp atomic.Bool
	// stuck says that a killed process does not end, or that PID 1 is frozen and cannot report
	// the end.
	stuck atomic.Bool
	// survivors are the names of processes that were running when the command ended.
	survivors []string
	// killing is held during a kill, so that the leaf is not removed meanwhile.
	killing sync.Mutex

	// Waiting is held by the goroutine that waits, and guards the fields below.
	Waiting *semaphore.Weighted
	ended   bool
	result  spec.Result
	err     error

	// closing ends with the call of endWait. It interrupts the Wait under way, and all later ones.
	closing context.Context
	endWait context.CancelFunc

	// over says that leave was called.
	over atomic.Bool
}

// ID is the exec's id, which is unique while the host is up.
func (p *Process) ID() string { return p.Exec.String() }

// Terminal is the master of the command's terminal. It is nil for a command without a terminal.
// [Process.Close] closes the master.
func (p *Process) Terminal() *os.File { return p.Inside.Terminal() }

// Output returns the files with the output of a detached command, and none for other commands.
// [Process.Close] closes the files.
func (p *Process) Output() (stdout, stderr streams.LogFile) {
	if p.Kept == nil {
		return stdout, stderr
	}
	return p.Kept.log(p.Kept.stdout), p.Kept.log(p.Kept.stderr)
}

// Joining returns a channel that is closed when the command of a transaction has succeeded and its
// writes begin to join. Then Wait goes on until the end of the join, also if the caller gives up.
// The channel of other commands is nil.
func (p *Process) Joining() <-chan struct{} { return p.joining }

// Register adds the exec to the session's list, and starts the timer of its timeout. A detached
// exec is not in the list.
func (v *Session) Register(p *Process) {
	p.Waiting = semaphore.NewWeighted(1)
	p.closing, p.endWait = context.WithCancel(context.Background())
	switch {
	case p.Timeout <= 0:
	case p.Kept != nil:
		v.armDeadline(p.Exec, p.StartedAt.Add(p.Timeout))
	default:
		// The timer must not fire before p.deadline is set, since expire uses it.
		p.deadline = time.AfterFunc(math.MaxInt64, p.expire)
		p.deadline.Reset(time.Until(p.StartedAt.Add(p.Timeout)))
	}
	if p.Kept != nil {
		return
	}
	v.Mu.Lock()
	defer v.Mu.Unlock()
	v.running[p.ID()] = p
}

// leave ends the exec's use of the session. It may be called again.
func (p *Process) leave() {
	if p.over.Swap(true) {
		return
	}
	p.files.Discard()
	v := p.Live
	if p.Kept == nil {
		v.Mu.Lock()
		delete(v.running, p.ID())
		v.Mu.Unlock()
	}
	v.Leave()
}

// startRetry is the time between two calls of expire while the command has no process.
const startRetry = 20 * time.Millisecond

// expire ends the command. The timer calls it after the timeout.
func (p *Process) expire() {
	p.Live.Enter() // so that the group stays open, which the leaf needs
	defer p.Live.Leave()
	if p.over.Load() {
		return
	}
	p.Live.awaitMotion(context.Background())
	if alive, err := p.Leaf.Populated(); err == nil && !alive && !p.Live.Paused() {
		// Either the command has ended in time, and a call of Wait returns its exit status. Or
		// the agent has not started the command yet. Then a later expire kills it.
		p.deadline.Reset(startRetry)
		return
	}
	p.timedOut.Store(true)
	// In a paused sandbox, PID 1 is frozen and does not report the end. On v2 the kill itself
	// works.
	if p.terminate() != nil || p.Live.Paused() {
		p.stuck.Store(true)
		_ = p.Inside.Close() // makes Wait return
	}
}

// Kill kills all processes in the exec's leaf, and no others.
func (p *Process) Kill() error {
	ctx, cancel := context.WithTimeout(context.Background(), killTime)
	defer cancel()
	p.Live.awaitMotion(ctx)
	p.killing.Lock()
	defer p.killing.Unlock()
	kill := func() error {
		if p.Inside != nil {
			_ = p.Inside.Signal(unix.SIGKILL) // the command may not be in its leaf yet
		}
		return p.Leaf.Kill(ctx)
	}
	// A disk limit can delay the end of a killed command for minutes. If the sandbox is there for
	// this command alone, lift its limits meanwhile. Other sandboxes keep their limits.
	if p.Config.Tied && aloneIn(p.Live.Sandbox, p.Leaf) {
		return p.Live.Lift.Without(kill)
	}
	return kill()
}

// Signal sends a signal to the command's process group, as a terminal does. With tree it sends
// the signal to all processes that the command has started, daemons included. If the command has
// ended, the error is [os.ErrProcessDone].
func (p *Process) Signal(sig syscall.Signal, tree bool) error {
	if sig < 1 || sig > 64 {
		return fault.Refusal(fmt.Errorf("no signal has the number %d", int(sig)))
	}
	if asksToEnd(sig) {
		p.farewell.begin()
	}
	switch {
	case !tree:
		p.awaitGroup()
		return p.Inside.SignalGroup(sig)
	case sig == unix.SIGKILL:
		return p.Kill()
	}
	p.killing.Lock()
	defer p.killing.Unlock()
	return p.Leaf.Signal(sig)
}

// awaitGroup waits until the command leads its process group, at most killTime. Until then the agent finds no process
// for a signal to the group.
func (p *Process) awaitGroup() {
	ctx, cancel := context.WithTimeout(context.Background(), killTime)
	defer cancel()
	_ = p.Live.UnlessPaused(ctx, p.Inside.Started) // SignalGroup tells if the command was not started
}

// Wait waits for the end of the command, kills the processes that the command has left, and
// returns the Result. Later calls return the same Result. If ctx ends first, Wait ends the
// command as Terminate does and returns its Result, too. But for a detached command Wait returns
// ctx's error, and the command goes on.
//
// Errors: those of Started, [os.ErrClosed] after Close, and errors of the sandbox.
func (p *Process) Wait(ctx context.Context) (spec.Result, error) {
	// Acquire alone would fail if ctx has ended, and nothing would kill the command.
	if !p.Waiting.TryAcquire(1) {
		if err := p.Waiting.Acquire(ctx, 1); err != nil {
			return spec.Result{}, err
		}
	}
	defer p.Waiting.Release(1)
	if p.ended {
		return p.result, p.err
	}
	exit, err := p.awaitEnd(ctx)
	defer p.Kept.unlock()
	if errors.Is(err, errClosing) {
		return spec.Result{}, os.ErrClosed // Close ends the exec
	}
	cancelled := err != nil && ctx.Err() != nil || p.gaveUp.Load() && p.Kept == nil
	if cancelled && p.Kept != nil {
		return spec.Result{}, ctx.Err()
	}
	if cancelled && err != nil && ctx.Err() != nil {
		exit, err = p.end()
	}
	if start, ok := errors.AsType[*agent.StartError](err); ok {
		p.fail(p.refused(start))
		return spec.Result{}, p.err
	}
	if p.deadline != nil {
		p.deadline.Stop()
	}
	p.ended = true
	if p.Kept != nil {
		p.result, p.err = p.concludeOnce(exit, err)
	} else {
		p.result, p.err = p.conclude(exit, err, cancelled)
	}
	p.leave()
	return p.result, p.err
}

// errClosing says that Close has interrupted a Wait.
var errClosing = errors.New("the process is closed")

// awaitEnd waits for the command's end, and locks the Result of a detached command. The end of ctx or Close
// interrupts the wait.
func (p *Process) awaitEnd(ctx context.Context) (agent.Exit, error) {
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.closing, cancel)()
	exit, err := p.Inside.Wait(waiting)
	if p.Kept != nil && (err == nil || waiting.Err() == nil) {
		if locked := descriptor.Lock(waiting, p.Kept.result, descriptor.Exclusive); locked != nil {
			err = locked
		}
	}
	if err != nil && p.closing.Err() != nil && ctx.Err() == nil {
		return exit, errClosing
	}
	return exit, err
}

// end ends the command and all processes that it started, and returns its exit status.
func (p *Process) end() (agent.Exit, error) {
	killed := p.terminate()
	ctx, cancel := context.WithTimeout(context.Background(), killTime)
	defer cancel()
	exit, err := p.Inside.Wait(ctx)
	if err != nil {
		err = errors.Join(err, killed)
	}
	return exit, err
}

// conclude kills the processes that are left, and returns the Result. It also ends the
// transaction and gives the leaf back.
func (p *Process) conclude(exit agent.Exit, waitErr error, cancelled bool) (spec.Result, error) {
	v := p.Live
	r := spec.Result{
		ID: v.ID, Exec: p.ID(), Isolation: p.Config.Config.Isolation(), Limits: p.Config.Limits,
		Notes: append([]string(nil), p.Config.Notes...), Duration: p.runningTime(exit),
	}
	e := commandEnd{
		status: exit.Status, known: waitErr == nil, cancelled: cancelled, refused: exit.Refused,
		timedOut: p.timedOut.Load() || p.keptTimedOut(exit), removed: exit.Status.Signaled() && v.isRemoved(),
		grace: p.farewell.grace,
	}
	_, e.asked = p.farewell.graceEnd()
	e.asked = e.asked || p.Kept != nil && p.Kept.wasAsked()
	lost := errors.Is(waitErr, agent.ErrGone)
	if waitErr != nil && !lost && !cancelled && !p.stuck.Load() {
		return spec.Result{}, errors.Join(fmt.Errorf("wait for the command: %w", waitErr), p.Kill(), p.giveUp())
	}
	if err := p.finish(); err != nil && !lost {
		r.Notes = append(r.Notes, p.unkilled(err))
	}
	e.left = p.survivors
	usage := p.account(&r, &e, exit)
	p.accountNetwork(&r, &e)
	e.timeout = p.Timeout
	e.forbids, e.profile = forbids(p.Config.Config, p.Args), builtInProfile(p.Config.Config)
	if lost {
		e.lost = v.fate()
	}
	failed := !lost && e.failed()
	if failed { // must come before endTransaction, which frees the space of dropped writes
		// Only file systems to which only the sandbox writes, and directories of the host with a quota, are asked. A
		// server of another file system that does not answer would block the caller.
		e.full = append(fullSharedMemory(p.Config), v.all.fullStores(p.Config)...)
		e.missedNetwork = p.baseline.missedNetwork(p.Config)
	}
	e.describe(&r)
	if err := p.endTransaction(&r); err != nil {
		p.files.Discard()
		v.Leaves.retire(p.Leaf)
		return spec.Result{}, err
	}
	p.files.End(&r)
	if !lost && !failed {
		p.tellFilled(&r)
	}
	if !lost {
		p.TellDamage(&r)
	}
	if p.Kept != nil { // not recycled, since other launchers know the leaf by its name
		v.Leaves.retire(p.Leaf)
	} else {
		v.Leaves.recycle(ExecLeaf{p.Exec, p.Leaf, p.under, usage})
	}
	return r, nil
}

// keptTimedOut says whether the timeout has ended a detached command. The command may have ended
// before, and left processes that the timeout has ended.
func (p *Process) keptTimedOut(exit agent.Exit) bool {
	const inexact = 50 * time.Millisecond // two clocks, one in milliseconds
	return p.Kept != nil && p.Kept.timedOut() &&
		(exit.Ended.IsZero() || !exit.Ended.Before(p.StartedAt.Add(p.Timeout-inexact)))
}

// errStuck says that expire has already waited for the end of the killed processes.
var errStuck = errors.New("the time to wait for their end is over")

// finish kills the processes that the command has left.
func (p *Process) finish() error {
	if alive, err := p.Leaf.Populated(); err == nil && !alive {
		return nil
	}
	if !p.stuck.Load() {
		p.seeOff()
	}
	p.survivors = processesIn(p.Leaf)
	if p.stuck.Load() {
		return errStuck
	}
	return p.Kill()
}

// unkilled returns a note about processes that are left after the end of their exec.
func (p *Process) unkilled(err error) string {
	if p.Live.Paused() {
		return "the sandbox is paused: the processes that the command has left end after a resume"
	}
	return fmt.Sprintf("the processes that the command has left were killed, but did not end: %v", err)
}

// account writes the leaf's use of resources to the result and to the ending.
func (p *Process) account(r *spec.Result, e *commandEnd, exit agent.Exit) cgroups.Usage {
	usage, err := p.Leaf.Usage()
	if err != nil { // the leaf was removed with its sandbox
		usage = cgroups.Usage{
			CPU: cgroups.Unknown, MemoryPeak: cgroups.Unknown, IORead: cgroups.Unknown, IOWritten: cgroups.Unknown,
		}
	}
	r.CPU = usage.CPU
	if usage.CPU < 0 {
		r.CPU = exit.UserTime + exit.SystemTime
	}
	r.PeakMemory = uint64(max(usage.MemoryPeak, 0))
	r.IORead, r.IOWritten = usage.IORead, usage.IOWritten
	e.oomKills, e.forksRefused = max(usage.OOMKills, 0), max(usage.PidsLimitHits, 0)
	e.forksStopped = usage.ForksStopped
	e.shortOutside = e.oomKills > 0 && p.Live.shortOutside(p.Config.Config.Limits.Memory)
	e.limits = p.limits
	if usage.MemoryPeak >= 0 && !cgroups.AtLimit(usage.MemoryPeak, int64(p.limits.Memory)) {
		e.limits.Memory = p.Config.Config.Limits.Memory // the command was below a limit of its own
	}
	return usage
}

// Close releases the process. If the command still runs and is not detached, Close ends it and
// all processes that it started, as Terminate does. A Wait under way returns [os.ErrClosed]. Close may be called
// again.
func (p *Process) Close() error {
	var err error
	p.endWait()
	_ = p.Waiting.Acquire(context.Background(), 1) // never fails without a deadline
	if !p.ended {
		p.ended, p.err = true, os.ErrClosed
		err = p.giveUp()
	}
	p.Waiting.Release(1)
	p.leave()
	return errors.Join(err, p.Inside.Close(), p.Kept.close())
}

// giveUp ends the exec when no caller waits for it any more. The timeout of a detached
// command goes on.
func (p *Process) giveUp() error {
	if p.Kept != nil {
		return p.Leaf.Close()
	}
	if p.deadline != nil {
		p.deadline.Stop()
	}
	err := errors.Join(p.terminate(), p.dropTransaction())
	p.Live.Leaves.retire(p.Leaf)
	return err
}

// endTransaction joins the command's writes to the sandbox's files, or drops them.
func (p *Process) endTransaction(r *spec.Result) error {
	t := p.Transaction
	p.Transaction = nil
	if t != nil && r.OK() {
		close(p.joining)
	}
	ctx := context.Background()
	return t.Settle(ctx, r, func(f func() error) error { return p.Live.all.Alone(ctx, p.Live, f) })
}

func (p *Process) dropTransaction() error {
	t := p.Transaction
	p.Transaction = nil
	return t.Drop()
}

// undo removes the state of an exec whose command did not start.
func (p *Process) undo() error {
	p.files.Discard()
	err := errors.Join(p.Kept.remove(), p.Kill(), p.dropTransaction())
	p.Live.Leaves.retire(p.Leaf)
	return err
}
