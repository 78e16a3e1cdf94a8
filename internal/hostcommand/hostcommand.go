// Package hostcommand runs commands on the host without any isolation: as this program's user,
// each in a process group of its own.
package hostcommand

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A Command describes a command.
type Command struct {
	// Sandbox is the id in the Result.
	Sandbox string
	Args    []string
	// Env is added to the environment of this program, and wins over it.
	Env []string
	// Dir is the working directory. Empty: this program's.
	Dir string
	// Timeout ends the process group. 0: none.
	Timeout time.Duration
	// Stdio are the standard streams. Nil: /dev/null. They stay the caller's.
	Stdio [3]*os.File
}

// An Execution is a command that was started.
type Execution struct {
	command Command
	cmd     *exec.Cmd
	begun   time.Time
	notRun  *launch.NotRunError

	// mu guards the fields below. While mu is held and reaped is false, no other process group
	// can have the number of this one.
	mu     sync.Mutex
	reaped bool
	why    ending

	ended  chan struct{} // closed once result is there
	result spec.Result
}

// Start starts a command. Started and Wait tell that a command could not be executed. An
// error is about the directory.
func Start(c Command) (*Execution, error) {
	e := &Execution{command: c, cmd: c.process(), begun: time.Now(), ended: make(chan struct{})}
	if err := e.cmd.Start(); err != nil {
		if _, gone := os.Stat(c.Dir); c.Dir != "" && gone != nil {
			return nil, fmt.Errorf("its workspace is gone: %w", gone)
		}
		e.notRun = notRun(c.Args[0], err)
		close(e.ended)
		return e, nil
	}
	go e.attend()
	return e, nil
}

func (c Command) process() *exec.Cmd {
	cmd := exec.Command(c.Args[0], c.Args[1:]...)
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.Dir = c.Dir
	// A nil *os.File is not a nil reader.
	if c.Stdio[0] != nil {
		cmd.Stdin = c.Stdio[0]
	}
	if c.Stdio[1] != nil {
		cmd.Stdout = c.Stdio[1]
	}
	if c.Stdio[2] != nil {
		cmd.Stderr = c.Stdio[2]
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

func notRun(name string, err error) *launch.NotRunError {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return &launch.NotRunError{Code: spec.ExitNotFound, Reason: name + ": not found"}
	}
	return &launch.NotRunError{Code: spec.ExitNotExecutable, Reason: fmt.Sprintf("%s: not executable: %v", name, err)}
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
func (e *Execution) attend() {
	if e.command.Timeout > 0 {
		timer := time.AfterFunc(e.command.Timeout, func() { e.kill(endedTimeout) })
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
	close(e.ended)
}

// awaitEnd waits for the end of the command, and leaves it as a zombie.
func (e *Execution) awaitEnd() {
	_, _ = descriptor.Retry(func() (int, error) {
		return 0, unix.Waitid(unix.P_PID, e.cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
	})
}

// kill kills the process group. The first call decides the reason in the Result.
func (e *Execution) kill(why ending) {
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

// ID is empty: no other process can attach to the command.
func (e *Execution) ID() string { return "" }

// Started returns a *launch.NotRunError for a command that could not be executed.
func (e *Execution) Started(context.Context) error {
	if e.notRun != nil {
		return e.notRun
	}
	return nil
}

// Signal sends a signal to the process group. With tree, SIGKILL also decides the reason in the
// Result. An ended command is os.ErrProcessDone.
func (e *Execution) Signal(sig syscall.Signal, tree bool) error {
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

// Wait returns the Result once the command has ended and the rest of its process group was
// killed. For a command that could not be executed the error is a *launch.NotRunError.
func (e *Execution) Wait(ctx context.Context) (spec.Result, error) {
	select {
	case <-e.ended:
	case <-ctx.Done():
		return spec.Result{}, ctx.Err()
	}
	if e.notRun != nil {
		return spec.Result{}, e.notRun
	}
	return e.result, nil
}

// Close kills a command that still runs, and waits for its end.
func (e *Execution) Close() error {
	e.kill(endedKilled)
	<-e.ended
	return nil
}

// Lose is Close for a command whose sandbox was removed. The Result says so.
func (e *Execution) Lose() {
	e.kill(endedLost)
	<-e.ended
}

// Ended is closed once Wait returns at once.
func (e *Execution) Ended() <-chan struct{} { return e.ended }

// describe fills in the result from the command's end. The command must be reaped.
func (e *Execution) describe() {
	state := e.cmd.ProcessState
	status := state.Sys().(syscall.WaitStatus)
	r := spec.Result{
		ID: e.command.Sandbox, Isolation: spec.IsolationNone, Limits: spec.NoLimits(),
		Duration: time.Since(e.begun), CPU: state.UserTime() + state.SystemTime(), IORead: -1, IOWritten: -1, NetworkReceived: -1, NetworkSent: -1,
	}
	if usage, ok := state.SysUsage().(*syscall.Rusage); ok {
		r.PeakMemory = uint64(usage.Maxrss) << 10
	}
	switch {
	case e.why == endedTimeout && status.Signaled():
		r.Status, r.ExitCode = spec.StatusTimedOut, spec.ExitTimedOut
		r.Reason = fmt.Sprintf("the command was still running after %s and was killed with all it had started", e.command.Timeout)
	case status.Exited():
		r.Status, r.ExitCode = spec.StatusExited, status.ExitStatus()
		r.Reason = fmt.Sprintf("the command ended with exit code %d", r.ExitCode)
		if r.ExitCode == 0 {
			r.Reason = "the command succeeded"
		}
	default:
		sig := status.Signal()
		r.Status, r.Signal, r.ExitCode = spec.StatusSignaled, unix.SignalName(sig), spec.ExitSignalBase+int(sig)
		r.Reason = fmt.Sprintf("the command was killed by signal %d (%s)", int(sig), r.Signal)
		if e.why == endedLost {
			r.Status, r.Reason = spec.StatusLost, "the sandbox was removed while the command ran"
		}
	}
	e.result = r
}
