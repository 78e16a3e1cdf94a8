package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Local runs the command on the host, with no isolation whatsoever: as the
// caller, with the caller's environment under the configuration's, in the
// workspace, which is made with its parents where it does not exist. The
// timeout and ctx end its process group. The result says that nothing was
// isolated and no limit enforced.
//
// It is never a fallback: only who asks for it by name gets it.
func Local(ctx context.Context, c spec.Config, cmd Command) (spec.Result, error) {
	if err := refuseUnkept(c, cmd); err != nil {
		return spec.Result{}, err
	}
	if _, err := c.Complete(); err != nil {
		return spec.Result{}, err
	}
	var stdout, stderr *capture
	if cmd.Capture {
		stdout, stderr = &capture{limit: captureLimit}, &capture{limit: captureLimit}
		cmd.Stdout, cmd.Stderr = stdout, stderr
	}
	waiting, cancel := ctx, context.CancelFunc(func() {})
	if c.Timeout > 0 {
		waiting, cancel = context.WithTimeout(ctx, time.Duration(c.Timeout))
	}
	defer cancel()
	run, err := localCommand(waiting, c, cmd)
	if err != nil {
		return spec.Result{}, err
	}
	started := time.Now()
	if err := run.Start(); err != nil {
		return spec.Result{}, localNotRun(cmd.Args[0], err)
	}
	if err := run.Wait(); err != nil && !isEnding(err) {
		return spec.Result{}, fmt.Errorf("wait for the command: %w", err)
	}
	r := localResult(waiting, ctx, run.ProcessState, c)
	r.Duration = time.Since(started)
	if cmd.Capture {
		r.Stdout, r.StdoutTruncated = stdout.kept, stdout.truncated
		r.Stderr, r.StderrTruncated = stderr.kept, stderr.truncated
	}
	return r, nil
}

// isEnding tells errors that say how the command ended from others.
func isEnding(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) || errors.Is(err, exec.ErrWaitDelay) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// refuseUnkept names what was asked for that nothing on the host would hold.
func refuseUnkept(c spec.Config, cmd Command) error {
	for _, asked := range []struct {
		what string
		is   bool
	}{
		{"a root file system", c.Rootfs != ""},
		{"binds", len(c.Binds) > 0},
		{"a network", c.Network != ""},
		{"limits", c.Limits != spec.Limits{}},
		{"a user", c.User != nil},
		{"a directory inside", c.Cwd != ""},
		{"a host name", c.Hostname != ""},
		{"a seccomp profile", c.Seccomp != ""},
		{"a terminal of its own", cmd.Terminal != nil},
	} {
		if asked.is {
			return fmt.Errorf("%s: nothing holds that without isolation; leave it out, or run in a sandbox", asked.what)
		}
	}
	return nil
}

func localCommand(ctx context.Context, c spec.Config, cmd Command) (*exec.Cmd, error) {
	run := exec.CommandContext(ctx, cmd.Args[0], cmd.Args[1:]...)
	run.Stdin, run.Stdout, run.Stderr = cmd.Stdin, cmd.Stdout, cmd.Stderr
	run.Env = os.Environ()
	for name, value := range c.Env {
		run.Env = append(run.Env, name+"="+value)
	}
	if c.Workspace != "" {
		if err := os.MkdirAll(c.Workspace, 0o755); err != nil {
			return nil, fmt.Errorf("make the workspace: %w", err)
		}
		run.Dir = c.Workspace
	}
	run.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	run.Cancel = func() error { return unix.Kill(-run.Process.Pid, unix.SIGKILL) }
	// What left the group and holds the output open is not waited for.
	run.WaitDelay = time.Second
	return run, nil
}

func localNotRun(name string, err error) error {
	switch {
	case isEnding(err):
		return err
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, unix.ENOENT):
		return &NotRunError{Code: spec.ExitNotFound, Err: fmt.Errorf("%s: not found", name)}
	default:
		return &NotRunError{Code: spec.ExitNotExecutable, Err: err}
	}
}

// localResult tells a timeout, of waiting, from a caller that gave up.
func localResult(waiting, caller context.Context, state *os.ProcessState, c spec.Config) spec.Result {
	r := spec.Result{
		ID:        newID(),
		Isolation: spec.IsolationNone,
		CPU:       state.UserTime() + state.SystemTime(),
		Limits:    spec.NoLimits(),
	}
	if usage, ok := state.SysUsage().(*syscall.Rusage); ok {
		r.PeakMemory = uint64(usage.Maxrss) << 10
	}
	ended := waiting.Err() != nil
	end := ending{
		status: state.Sys().(syscall.WaitStatus), known: !ended,
		timedOut:  ended && caller.Err() == nil,
		cancelled: caller.Err() != nil,
	}
	end.describe(&r, c)
	return r
}
