package launcher

import (
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// An ending is all that is known of how a command ended.
type ending struct {
	// status is the command's wait status; known says that there is one.
	status syscall.WaitStatus
	known  bool
	// timedOut and cancelled say that the runtime ended it, and why.
	timedOut, cancelled bool
	// oomKills and forksRefused count what the sandbox's cgroup reported.
	oomKills, forksRefused int64
}

// describe fills in the part of the result that tells how the command ended.
func (e ending) describe(r *spec.Result, c spec.Config) {
	r.Violations = e.violations(c.Limits)
	switch {
	case e.timedOut:
		r.Status, r.ExitCode = spec.StatusTimedOut, spec.ExitTimedOut
		r.Reason = fmt.Sprintf("the command was still running after %s and was killed with all it had started",
			time.Duration(c.Timeout))
	case !e.known && e.oomKills > 0:
		e.describeOOM(r, c.Limits)
	case e.cancelled:
		r.Status = spec.StatusSignaled
		setSignal(r, unix.SIGKILL)
		r.Reason = "the caller gave up, and the command was killed with all it had started"
	case !e.known:
		r.Status = spec.StatusLost
		setSignal(r, unix.SIGKILL)
		r.Reason = "the sandbox was killed from outside while the command ran"
	case e.status.Exited():
		r.Status, r.ExitCode = spec.StatusExited, e.status.ExitStatus()
		r.Reason = exitReason(r.ExitCode)
	default:
		e.describeSignal(r, c.Limits)
	}
}

func exitReason(code int) string {
	if code == 0 {
		return "the command succeeded"
	}
	return fmt.Sprintf("the command ended with exit code %d", code)
}

func (e ending) describeSignal(r *spec.Result, l spec.Limits) {
	sig := e.status.Signal()
	setSignal(r, sig)
	switch {
	case sig == unix.SIGKILL && e.oomKills > 0:
		e.describeOOM(r, l)
	case sig == unix.SIGXFSZ:
		r.Status = spec.StatusLimit
		r.Reason = fmt.Sprintf("the command was killed for writing a file larger than %s (raise it with --file-size)", l.FileSize)
		r.Violations = append(r.Violations, spec.Violation{Kind: "limit", Detail: "file size limit of " + l.FileSize.String() + " reached"})
	case sig == unix.SIGSYS:
		r.Status = spec.StatusDenied
		r.Reason = "the command was killed for a system call that the sandbox forbids"
		r.Violations = append(r.Violations, spec.Violation{Kind: "syscall", Detail: "a forbidden system call ended the command"})
	default:
		r.Status = spec.StatusSignaled
		r.Reason = fmt.Sprintf("the command was killed by signal %d (%s)", int(sig), r.Signal)
	}
}

func (e ending) describeOOM(r *spec.Result, l spec.Limits) {
	r.Status = spec.StatusOOMKilled
	setSignal(r, unix.SIGKILL)
	r.Reason = fmt.Sprintf("the command was killed because the sandbox used all of its %s of memory (raise it with --memory)", l.Memory)
}

func setSignal(r *spec.Result, sig syscall.Signal) {
	r.Signal, r.ExitCode = unix.SignalName(sig), spec.ExitSignalBase+int(sig)
}

// violations are the limits that were hit, whether or not that ended the
// command.
func (e ending) violations(l spec.Limits) []spec.Violation {
	var all []spec.Violation
	if e.oomKills > 0 {
		all = append(all, spec.Violation{Kind: "limit",
			Detail: fmt.Sprintf("memory limit of %s reached, processes killed: %d", l.Memory, e.oomKills)})
	}
	if e.forksRefused > 0 {
		all = append(all, spec.Violation{Kind: "limit",
			Detail: fmt.Sprintf("limit of %d processes and threads reached, new ones refused: %d", l.Pids, e.forksRefused)})
	}
	return all
}
