package sandbox

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A localExecution is a command that runs on the host, in a process group of its own.
type localExecution struct {
	instance *localInstance
	cmd      *exec.Cmd
	begun    time.Time
	timeout  time.Duration
	notRun   *NotRunError

	// mu guards the fields below. While mu is held and reaped is false, no other process group
	// can have the number of this one.
	mu     sync.Mutex
	reaped bool
	why    ending

	ended  chan struct{} // closed once result is there
	result Result
}

// ending is the reason for which this program ended a command.
type ending int

const (
	endedItself ending = iota
	endedTimeout
	endedLost   // its sandbox was removed
	endedKilled // by Signal or Close
)

// attend waits for the command, and kills the rest of its process group.
func (e *localExecution) attend() {
	if e.timeout > 0 {
		timer := time.AfterFunc(e.timeout, func() { e.kill(endedTimeout) })
		defer timer.Stop()
	}
	e.awaitEnd()
	e.mu.Lock()
	// The command is still a zombie, so no other group can have its number.
	_ = unix.Kill(-e.cmd.Process.Pid, unix.SIGKILL)
	_ = e.cmd.Wait() // describe reads the end from ProcessState
	e.reaped = true
	e.mu.Unlock()

	e.describe()
	e.instance.mu.Lock()
	delete(e.instance.running, e)
	e.instance.mu.Unlock()
	close(e.ended)
}

// awaitEnd waits for the end of the command, and leaves it as a zombie.
func (e *localExecution) awaitEnd() {
	_, _ = descriptor.Retry(func() (int, error) {
		return 0, unix.Waitid(unix.P_PID, e.cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
	})
}

// kill kills the process group. The first call decides the reason in the Result.
func (e *localExecution) kill(why ending) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.reaped || e.cmd.Process == nil {
		return
	}
	if e.why == endedItself {
		e.why = why
	}
	_ = unix.Kill(-e.cmd.Process.Pid, unix.SIGKILL)
}

func (e *localExecution) ID() string { return "" }

func (e *localExecution) Started(context.Context) error {
	if e.notRun != nil {
		return e.notRun
	}
	return nil
}

func (e *localExecution) Signal(sig syscall.Signal, tree bool) error {
	if e.notRun != nil {
		return os.ErrProcessDone
	}
	if tree && sig == unix.SIGKILL {
		e.kill(endedKilled)
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.reaped {
		return os.ErrProcessDone
	}
	return unix.Kill(-e.cmd.Process.Pid, sig)
}

func (e *localExecution) Wait(ctx context.Context) (Result, error) {
	select {
	case <-e.ended:
	case <-ctx.Done():
		return Result{}, ctx.Err()
	}
	if e.notRun != nil {
		return Result{}, e.notRun
	}
	return e.result, nil
}

func (e *localExecution) Close() error {
	e.kill(endedKilled)
	<-e.ended
	return nil
}

// describe fills in the result from the command's end. The command must be reaped.
func (e *localExecution) describe() {
	state := e.cmd.ProcessState
	status := state.Sys().(syscall.WaitStatus)
	r := Result{
		ID: e.instance.info.ID, Isolation: IsolationNone, Limits: spec.NoLimits(),
		Duration: time.Since(e.begun), CPU: state.UserTime() + state.SystemTime(), IORead: -1, IOWritten: -1,
	}
	if usage, ok := state.SysUsage().(*syscall.Rusage); ok {
		r.PeakMemory = uint64(usage.Maxrss) << 10
	}
	switch {
	case e.why == endedTimeout && status.Signaled():
		r.Status, r.ExitCode = StatusTimedOut, spec.ExitTimedOut
		r.Reason = fmt.Sprintf("the command was still running after %s and was killed with all it had started", e.timeout)
	case status.Exited():
		r.Status, r.ExitCode = StatusExited, status.ExitStatus()
		r.Reason = fmt.Sprintf("the command ended with exit code %d", r.ExitCode)
		if r.ExitCode == 0 {
			r.Reason = "the command succeeded"
		}
	default:
		sig := status.Signal()
		r.Status, r.Signal, r.ExitCode = StatusSignaled, unix.SignalName(sig), spec.ExitSignalBase+int(sig)
		r.Reason = fmt.Sprintf("the command was killed by signal %d (%s)", int(sig), r.Signal)
		if e.why == endedLost {
			r.Status, r.Reason = StatusLost, "the sandbox was removed while the command ran"
		}
	}
	e.result = r
}
