// Package failpoint kills a program at a chosen one of its side effects, or has one fail. The
// points need no code in the program: they are the moments before and after each of its system
// calls that change something in the kernel or on disk, as ptrace(2) shows them, in the order in
// which they come.
//
// Only the program itself is followed, with its threads. Its children run freely and, when
// the program is killed, live or die as after any SIGKILL.
package failpoint

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
)

// A Point is one moment at which a program can be killed.
type Point struct {
	// Call is the name of the system call, Object its object: a path, or the file of a
	// descriptor. An unknown one is empty.
	Call, Object string
	// After says that the call has been made; else it never is, if the program
	// is killed here.
	After bool
}

func (p Point) String() string {
	when := "before"
	if p.After {
		when = "after"
	}
	return when + " " + p.Call + " " + p.Object
}

// A Trace tells the end of a program.
type Trace struct {
	// Points are those it came to. The order of those of several threads is
	// not always the same.
	Points []Point
	// Killed says that it was killed, at the last of Points.
	Killed bool
	// Failed is the call that failed.
	Failed *Point
	Status unix.WaitStatus
}

// ErrTooSlow says that a program did not end in the time it had.
var ErrTooSlow = errors.New("has not ended in time")

// Run runs a program and kills it at its n-th point, counting from 1. With 0,
// or where it ends before that, it is not disturbed. Each standard stream of cmd
// is a file, or nil for /dev/null. Run replaces SysProcAttr.
func Run(cmd *exec.Cmd, n int, patience time.Duration) (Trace, error) {
	return trace(cmd, &tracer{killAt: n, known: map[int]*Point{}}, patience)
}

// Fail is Run for a call that fails: the first call that begins at the n-th point or later is not made,
// and returns the error.
func Fail(cmd *exec.Cmd, n int, with unix.Errno, patience time.Duration) (Trace, error) {
	return trace(cmd, &tracer{failAt: n, failure: with, known: map[int]*Point{}}, patience)
}

func trace(cmd *exec.Cmd, r *tracer, patience time.Duration) (Trace, error) {
	// ptrace(2) is between threads: this one is the tracer from here on.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return Trace{}, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	defer func() { _ = cmd.Process.Release() }() // the tracer waits for it
	pid := cmd.Process.Pid
	r.pid = pid
	late := time.AfterFunc(patience, func() { _ = unix.Kill(pid, unix.SIGKILL) })
	err := r.follow()
	if !late.Stop() && err == nil && !r.trace.Killed {
		err = fmt.Errorf("%q %w", cmd.Args, ErrTooSlow)
	}
	return r.trace, err
}

type tracer struct {
	pid    int
	killAt int
	// failAt and failure are of Fail.
	failAt  int
	failure unix.Errno
	failing int // the thread whose call fails, until the call returns
	// known has the point of the call that each thread is in, nil if that has no side
	// effect.
	known map[int]*Point
	trace Trace
}

// follow returns when the program has ended.
func (r *tracer) follow() error {
	var failed error // the program is killed then, and its end is all that counts
	for {
		var status unix.WaitStatus
		// The tracer waits only for the program's process group: other goroutines wait for the other children of this thread.
		tid, err := unix.Wait4(-r.pid, &status, unix.WALL|unix.WNOTHREAD, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return errors.Join(failed, fmt.Errorf("wait for traced process %d: %w", r.pid, err))
		case status.Stopped() && failed == nil:
			if failed = r.stopped(tid, status); failed != nil {
				_ = unix.Kill(r.pid, unix.SIGKILL)
			}
		case status.Stopped():
		case tid == r.pid:
			r.trace.Status = status
			return failed
		default:
			delete(r.known, tid) // the number may come back
		}
	}
}

// stopped handles a thread's stop and has it go on.
func (r *tracer) stopped(tid int, status unix.WaitStatus) error {
	deliver := 0
	_, known := r.known[tid]
	switch signal := status.StopSignal(); {
	case !known:
		// The first stop of a thread: SIGTRAP of the program's execve(2),
		// SIGSTOP of another.
		r.known[tid] = nil
		if tid == r.pid {
			const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE |
				unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_EXITKILL
			if err := unix.PtraceSetOptions(tid, options); err != nil {
				return vanished("set options", err)
			}
		}
	case signal == unix.SIGTRAP|0x80:
		if kill, err := r.atCall(tid); kill || err != nil {
			return err
		}
	case signal == unix.SIGTRAP && status.TrapCause() > 0:
		// A new thread, which stops for itself, or another program.
	default:
		deliver = int(signal)
	}
	return vanished("continue", unix.PtraceSyscall(tid, deliver))
}

// vanished ignores that a thread is gone: another one, or SIGKILL, ended the
// program meanwhile.
func vanished(what string, err error) error {
	if err == nil || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return fmt.Errorf("ptrace %s: %w", what, err)
}

// atCall counts the point of a stop before or after a system call, and kills
// the program if it is the one.
func (r *tracer) atCall(tid int) (killed bool, err error) {
	info, err := process.SystemCallOf(tid)
	if err != nil {
		return false, vanished("get system call", err)
	}
	at := r.known[tid]
	switch {
	case info.Op == unix.PTRACE_SYSCALL_INFO_ENTRY:
		at = sideEffect(r.pid, tid, info)
		r.known[tid] = at
	case info.Op == unix.PTRACE_SYSCALL_INFO_EXIT && at != nil:
		at.After = true
	}
	if at == nil || r.trace.Killed {
		return false, nil
	}
	r.trace.Points = append(r.trace.Points, *at)
	if err := r.failCall(tid, at); err != nil {
		return false, vanished("fail system call", err)
	}
	if len(r.trace.Points) != r.killAt {
		return false, nil
	}
	r.trace.Killed = true
	return true, unix.Kill(r.pid, unix.SIGKILL)
}

// failCall has the chosen call fail. The kernel skips a call without a number.
func (r *tracer) failCall(tid int, at *Point) error {
	switch {
	case r.failing == tid && at.After:
		r.failing = 0
		return setResult(tid, r.failure)
	case r.failure != 0 && r.trace.Failed == nil && !at.After && len(r.trace.Points) >= r.failAt:
		failed := *at
		r.failing, r.trace.Failed = tid, &failed
		return skipCall(tid)
	}
	return nil
}
