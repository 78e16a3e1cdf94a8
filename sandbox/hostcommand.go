package sandbox

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A hostCommand describes a command on the host without any isolation: as this program's user, in a process group of its own.
type hostCommand struct {
	// Sandbox is the id in the Result.
	Sandbox string
	Args    []string
	// Env is added to the environment of this program, and wins over it.
	Env []string
	// Dir is the working directory. Empty: this program's.
	Dir string
	// Timeout ends the process group. 0: none.
	Timeout time.Duration
	// Grace is the time between SIGTERM and SIGKILL. 0: SIGKILL at once.
	Grace time.Duration
	// Stdio are the standard streams. Nil: /dev/null. They stay the caller's.
	Stdio [3]*os.File
}

// A hostExecution is a hostCommand that was started.
type hostExecution struct {
	command hostCommand
	cmd     *exec.Cmd
	begun   time.Time
	notRun  *fault.NotRunError

	// mu guards the fields below. While mu is held and reaped is false, no other process group
	// can have the number of this one.
	mu     sync.Mutex
	reaped bool
	// over says that the command itself has ended.
	over bool
	why  hostEnd
	// until is the end of the grace. Zero: no signal has asked the command to end.
	until time.Time

	ended  chan struct{} // closed once result is there
	result spec.Result
}

// startOnHost starts a command. Started and Wait tell that a command could not be executed. An
// error is about the directory.
func startOnHost(c hostCommand) (*hostExecution, error) {
	e := &hostExecution{command: c, cmd: c.process(), begun: time.Now(), ended: make(chan struct{})}
	if err := e.cmd.Start(); err != nil {
		if _, gone := os.Stat(c.Dir); c.Dir != "" && gone != nil {
			return nil, fmt.Errorf("its workspace is gone: %w", gone)
		}
		e.notRun = c.notRun(err)
		close(e.ended)
		return e, nil
	}
	go e.attend()
	return e, nil
}

func (c hostCommand) process() *exec.Cmd {
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

// ending is the reason for which this program ended a command.
type hostEnd int

const (
	endedItself hostEnd = iota
	endedTimeout
	endedLost   // its sandbox was removed
	endedKilled // by Signal
	endedGaveUp // by Terminate or Close
)

// attend waits for the command, and kills the rest of its process group.
func (e *hostExecution) attend() {
	if e.command.Timeout > 0 {
		timer := time.AfterFunc(e.command.Timeout, func() { e.terminate(endedTimeout) })
		defer timer.Stop()
	}
	e.awaitEnd()
	e.mu.Lock()
	e.over = true
	e.mu.Unlock()
	e.awaitGroup()
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
func (e *hostExecution) awaitEnd() {
	_, _ = descriptor.Retry(func() (int, error) {
		return 0, unix.Waitid(unix.P_PID, e.cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
	})
}

// kill kills the process group. The first call decides the reason in the Result.
func (e *hostExecution) kill(why hostEnd) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.reaped || e.cmd.Process == nil {
		return
	}
	if e.why == endedItself && !e.over {
		e.why = why
	}
	_ = unix.Kill(-e.cmd.Process.Pid, unix.SIGKILL)
}

// terminate sends SIGTERM to the process group, and SIGKILL after the grace. The first call decides
// the reason in the Result. A stopped process goes on, so that it can end.
func (e *hostExecution) terminate(why hostEnd) {
	e.mu.Lock()
	over := e.over && e.why == endedItself
	e.mu.Unlock()
	if e.command.Grace <= 0 || over {
		e.kill(why)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.reaped || e.cmd.Process == nil || e.why != endedItself {
		return
	}
	e.why, e.until = why, time.Now().Add(e.command.Grace)
	_ = unix.Kill(-e.cmd.Process.Pid, unix.SIGTERM)
	_ = unix.Kill(-e.cmd.Process.Pid, unix.SIGCONT)
	time.AfterFunc(e.command.Grace, func() { e.kill(why) })
}

// groupCheck is the time between two looks at the rest of a process group.
const groupCheck = 20 * time.Millisecond

// awaitGroup gives the rest of the process group of an ended command the rest of the grace. The
// command is still a zombie, so no other group can have its number.
func (e *hostExecution) awaitGroup() {
	for {
		e.mu.Lock()
		until := e.until
		e.mu.Unlock()
		if time.Until(until) <= 0 || !othersIn(e.cmd.Process.Pid) {
			return
		}
		time.Sleep(groupCheck)
	}
}

// othersIn says whether a process group has a process that lives.
func othersIn(group int) bool {
	all, err := os.ReadDir("/proc")
	if err != nil {
		return false
	}
	for _, entry := range all {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == group {
			continue
		}
		if pgid, err := unix.Getpgid(pid); err == nil && pgid == group && !isZombie(pid) {
			return true
		}
	}
	return false
}

// isZombie says whether a process has ended, and was not waited for.
func isZombie(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	end := bytes.LastIndexByte(text, ')') // the name can have any character (proc_pid_stat(5))
	return err != nil || bytes.HasPrefix(text[end+1:], []byte(" Z"))
}

// Terminate ends the command and the rest of its process group with the grace. The Result says
// that the caller gave up.
func (e *hostExecution) Terminate() error {
	if e.notRun != nil {
		return os.ErrProcessDone
	}
	e.terminate(endedGaveUp)
	return nil
}

// ID is empty: no other process can attach to the command.
func (e *hostExecution) ID() string { return "" }

// Started returns a *fault.NotRunError for a command that could not be executed.
func (e *hostExecution) Started(context.Context) error {
	if e.notRun != nil {
		return e.notRun
	}
	return nil
}

// Signal sends a signal to the process group. With tree, SIGKILL also decides the reason in the
// Result. An ended command is os.ErrProcessDone.
func (e *hostExecution) Signal(sig syscall.Signal, tree bool) error {
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
	switch sig {
	case unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT: // requests to end
		if e.why == endedItself {
			e.until = time.Now().Add(e.command.Grace)
		}
	}
	return unix.Kill(-e.cmd.Process.Pid, sig)
}

// Wait returns the Result once the command has ended and the rest of its process group was
// killed. For a command that could not be executed the error is a *fault.NotRunError.
func (e *hostExecution) Wait(ctx context.Context) (spec.Result, error) {
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

// Close ends a command that still runs, as Terminate does, and waits for its end.
func (e *hostExecution) Close() error {
	e.terminate(endedGaveUp)
	<-e.ended
	return nil
}

// Lose is Close for a command whose sandbox was removed. The Result says so.
func (e *hostExecution) Lose() {
	e.Leave()
	<-e.ended
}

// Leave is Lose without the wait.
func (e *hostExecution) Leave() { e.terminate(endedLost) }

// Ended is closed once Wait returns at once.
func (e *hostExecution) Ended() <-chan struct{} { return e.ended }

// describe fills in the result from the command's end. The command must be reaped.
func (e *hostExecution) describe() {
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
	case e.why == endedTimeout && (status.Signaled() || e.wasAsked()):
		r.Status, r.ExitCode = spec.StatusTimedOut, spec.ExitTimedOut
		r.Reason = fmt.Sprintf("the command was still running after %s and %s", e.command.Timeout, e.farewell(status))
	case e.why == endedGaveUp && (status.Signaled() || e.wasAsked()):
		sig := unix.SIGTERM
		if status.Signaled() && status.Signal() == unix.SIGKILL {
			sig = unix.SIGKILL
		}
		r.Status, r.Signal, r.ExitCode = spec.StatusSignaled, unix.SignalName(sig), spec.ExitSignalBase+int(sig)
		r.Reason = "the caller gave up, and the command " + e.farewell(status)
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
			r.Status, r.Signal, r.ExitCode = spec.StatusLost, "SIGKILL", spec.ExitSignalBase+int(unix.SIGKILL)
			r.Reason = "the sandbox was removed while the command ran"
		}
	}
	e.result = r
}

// wasAsked says that this program has sent SIGTERM, with a grace.
func (e *hostExecution) wasAsked() bool {
	return e.why != endedItself && e.command.Grace > 0 && !e.until.IsZero()
}

// farewell tells how this program has ended the command.
func (e *hostExecution) farewell(status syscall.WaitStatus) string {
	switch killed := status.Signaled() && status.Signal() == unix.SIGKILL; {
	case killed && e.wasAsked():
		return fmt.Sprintf("was killed with all it had started, since it did not end within %s after SIGTERM", e.command.Grace)
	case killed:
		return "was killed with all it had started"
	case status.Exited():
		return fmt.Sprintf("ended by itself after SIGTERM, with exit code %d", status.ExitStatus())
	default:
		return "ended after SIGTERM"
	}
}
