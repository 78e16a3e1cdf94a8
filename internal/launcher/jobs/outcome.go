package jobs

import (
	"fmt"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/agent"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A commandEnd has the facts about the end of a command.
type commandEnd struct {
	// status is the command's wait status, if known is true.
	status syscall.WaitStatus
	known  bool
	// timedOut and cancelled say that the runtime has ended the command: after its timeout, or
	// because the caller gave up. timeout is the command's timeout.
	timedOut, cancelled bool
	timeout             time.Duration
	// asked says that the runtime has sent SIGTERM before it killed the rest after the grace.
	asked bool
	grace time.Duration
	// removed says that the removal of the sandbox has begun, and that a signal has ended the command.
	removed bool
	// limits are the limits of the command.
	limits spec.Limits
	// oomKills and forksRefused are the counts of the command's cgroup.
	oomKills, forksRefused int64
	network                networkUse
	// shortOutside says that the kills for memory had no cause in the sandbox.
	shortOutside bool
	// forksStopped counts the forks that failed because the runtime was ending the command.
	forksStopped int64
	// missedNetwork says that the sandbox has no network, and that a process has tried to reach one.
	missedNetwork bool
	// forbids is the text of [forbids] for the command.
	forbids string
	// left are the names of processes that were running when the command ended.
	left []string
	// refused are calls that the profile has refused to the command. They are known of some calls.
	refused agent.RefusedCalls
	// profile is the name of a built-in profile of system calls. It is empty for another profile.
	profile string
	// full are the full file systems of the sandbox after a failed command.
	full []fullFileSystem
	// lost is the fate of the sandbox, if nothing else is known.
	lost fate
}

// A fate is the reason why a sandbox ended while a command ran.
type fate int

const (
	fateUnknown fate = iota
	// fateOOM: the kernel killed PID 1, or had nothing else left to kill.
	fateOOM
	// fateOOMOutside: as fateOOM, but the sandbox was below its limit.
	fateOOMOutside
	// fateRemoved: somebody removed the sandbox.
	fateRemoved
)

// describe fills in the part of the result that tells how the command ended.
func (e commandEnd) describe(r *spec.Result) {
	r.Violations = e.violations()
	killed := e.known && e.status.Signaled() && e.status.Signal() == unix.SIGKILL
	// A shell whose fork is refused during the kill ends with an error of its own.
	ended := killed || !e.known || e.status != 0 && e.forksStopped > 0 || e.asked
	switch {
	case e.timedOut && ended:
		r.Status, r.ExitCode = spec.StatusTimedOut, spec.ExitTimedOut
		r.Reason = fmt.Sprintf("the command was still running after %s and %s", e.timeout, e.farewell())
	case e.oomKills > 0 && (killed || !e.known):
		e.describeOOM(r)
	case e.cancelled && ended:
		r.Status = spec.StatusSignaled
		setSignal(r, e.lastSignal())
		r.Reason = "the caller gave up, and the command " + e.farewell()
	case !e.known:
		e.describeLoss(r)
	case e.removed && e.status.Signaled() && (killed || e.status.Signal() == unix.SIGTERM):
		e.lost = fateRemoved
		e.describeLoss(r)
	case e.status.Exited():
		r.Status, r.ExitCode = spec.StatusExited, e.status.ExitStatus()
		r.Reason = e.exitReason(r.ExitCode)
	default:
		e.describeSignal(r)
	}
}

// endedItself says that the command has ended by itself after the runtime's SIGTERM.
func (e commandEnd) endedItself() bool {
	return e.asked && e.known && (!e.status.Signaled() || e.status.Signal() != unix.SIGKILL)
}

// lastSignal is the signal by which the runtime has ended the command.
func (e commandEnd) lastSignal() syscall.Signal {
	if e.endedItself() {
		return unix.SIGTERM
	}
	return unix.SIGKILL
}

// farewell tells how the runtime has ended the command.
func (e commandEnd) farewell() string {
	switch {
	case e.endedItself() && e.status.Exited():
		return fmt.Sprintf("ended by itself after SIGTERM, with exit code %d", e.status.ExitStatus())
	case e.endedItself():
		return "ended after SIGTERM"
	case e.asked:
		return fmt.Sprintf("was killed with all it had started, since it did not end within %s after SIGTERM", e.grace)
	default:
		return "was killed with all it had started"
	}
}

// tellFull adds the full file systems that a successful command has written to. The status stays
// as it is.
func tellFull(r *spec.Result, all []fullFileSystem, written map[string]bool) {
	for _, f := range all {
		if written[f.place] {
			r.Violations = append(r.Violations, limitHit("%s", f.violation))
			r.Reason += "; " + f.reason
		}
	}
}

// failed says that the command has failed, and not because the runtime ended it.
func (e commandEnd) failed() bool { return e.known && !e.timedOut && !e.cancelled && e.status != 0 }

// exitReason explains an exit code, if the reason is known.
func (e commandEnd) exitReason(code int) string {
	reason := "the command succeeded"
	if code != 0 {
		reason = fmt.Sprintf("the command ended with exit code %d", code)
	}
	var causes []string
	killed := "processes"
	if e.oomKills == 1 {
		killed = "a process"
	}
	switch {
	case e.oomKills > 0 && e.shortOutside:
		causes = append(causes, fmt.Sprintf("%s, and the kernel killed %s it had started", outsideMemory, killed))
	case e.oomKills > 0:
		causes = append(causes, fmt.Sprintf("memory ran out at %s, and the kernel killed %s it had started (raise it with --memory)",
			e.limits.Memory, killed))
	}
	if e.forksRefused > 0 {
		causes = append(causes, fmt.Sprintf("the limit of %d processes and threads was reached (raise it with --pids)", e.limits.Pids))
	}
	if e.network.quota != 0 {
		causes = append(causes, fmt.Sprintf("the quota of %s of the network is used up (raise it with --network-quota)", e.network.quota))
	}
	if e.network.requests != 0 {
		causes = append(causes, fmt.Sprintf("the %d requests of the network are used up (raise them with --network-requests)", e.network.requests))
	}
	if code != 0 {
		causes = append(causes, e.network.reasons...)
	}
	for _, full := range e.full {
		causes = append(causes, full.reason)
	}
	// Shells report a signal of their command so (POSIX.1-2024, XCU 2.8.2).
	switch syscall.Signal(code - spec.ExitSignalBase) {
	case unix.SIGXFSZ:
		causes = append(causes, fmt.Sprintf("this exit code is usual after a write that makes a file larger than %s", e.mostOfAFile()))
	case unix.SIGSYS:
		causes = append(causes, "this exit code is usual after "+e.killingCall())
	}
	refused := e.refusedCalls()
	switch {
	case code == 0 || len(causes) > 0:
	case len(refused) > 0:
		causes = append(causes, refused...)
	case e.forbids != "":
		causes = append(causes, e.forbids)
	case e.missedNetwork:
		causes = append(causes, "a connection or a lookup of a name failed, since the sandbox has no network (--network none)")
	}
	if len(e.left) > 0 {
		causes = append(causes, leftReason(e.left))
	}
	if len(causes) > 0 {
		reason += "; " + strings.Join(causes, "; ")
	}
	return reason
}

// outsideMemory is the cause of kills for memory in a sandbox that is below its own limit.
const outsideMemory = "the host, or all its sandboxes together (launcher --total-memory), had no memory left"

func (e commandEnd) describeSignal(r *spec.Result) {
	sig := e.status.Signal()
	setSignal(r, sig)
	switch sig {
	case unix.SIGXFSZ:
		r.Status = spec.StatusLimit
		r.Reason = "the command was killed for writing a file larger than " + e.mostOfAFile()
		r.Violations = append(r.Violations, limitHit("file size limit reached: %s", e.mostOfAFile()))
	case unix.SIGSYS:
		r.Status = spec.StatusDenied
		r.Reason = "the command was killed by signal 31 (SIGSYS), as for " + e.killingCall()
		r.Violations = append(r.Violations, spec.Violation{Kind: "syscall", Detail: "a forbidden system call ended the command"})
	case unix.SIGKILL:
		r.Status = spec.StatusSignaled
		r.Reason = "the command was killed by signal 9 (SIGKILL): a process in the sandbox or outside has sent the signal, and no limit was the cause"
	default:
		r.Status = spec.StatusSignaled
		r.Reason = fmt.Sprintf("the command was killed by signal %d (%s)", int(sig), r.Signal)
	}
}

// killingCall describes the system calls that end a process. The built-in profiles answer all calls of
// the native architecture, and end a process for those of another one only.
func (e commandEnd) killingCall() string {
	if e.profile == "" {
		return "a system call that the sandbox forbids"
	}
	return fmt.Sprintf("a 32-bit system call: the profile %s allows 64-bit programs only (use a 64-bit build of the program)", e.profile)
}

// mostOfAFile is the limit of a file's size, with the way out.
func (e commandEnd) mostOfAFile() string {
	if e.limits.FileSize == spec.Unlimited {
		return "the limit of the runtime itself, which the sandbox has inherited (raise it there with ulimit -f)"
	}
	return fmt.Sprintf("%s (raise it with --file-size)", e.limits.FileSize)
}

func (e commandEnd) describeOOM(r *spec.Result) {
	r.Status = spec.StatusOOMKilled
	setSignal(r, unix.SIGKILL)
	if e.shortOutside {
		r.Reason = outsideMemory + ", and the kernel killed the command"
		return
	}
	r.Reason = fmt.Sprintf("the command was killed when memory ran out at %s (raise it with --memory)", e.limits.Memory)
}

// describeLoss tells the fate of the sandbox.
func (e commandEnd) describeLoss(r *spec.Result) {
	r.Status = spec.StatusLost
	setSignal(r, unix.SIGKILL)
	switch e.lost {
	case fateOOM:
		r.Reason = fmt.Sprintf("the sandbox used all of its %s of memory, and the kernel ended the sandbox; make it anew, with more --memory", e.limits.Memory)
	case fateOOMOutside:
		r.Reason = outsideMemory + ", and the kernel ended the sandbox; make it anew"
	case fateRemoved:
		r.Reason = "the sandbox was removed while the command ran"
	default:
		r.Reason = "the sandbox was killed from outside while the command ran; make it anew"
	}
}

func setSignal(r *spec.Result, sig syscall.Signal) {
	r.Signal, r.ExitCode = unix.SignalName(sig), spec.ExitSignalBase+int(sig)
}

func limitHit(format string, args ...any) spec.Violation {
	return spec.Violation{Kind: "limit", Detail: fmt.Sprintf(format, args...)}
}

// violations are the limits that the command has hit. The command may have gone on.
func (e commandEnd) violations() []spec.Violation {
	var all []spec.Violation
	if e.oomKills > 0 && !e.shortOutside {
		all = append(all, limitHit("memory limit of %s reached, processes killed: %d (raise it with --memory)", e.limits.Memory, e.oomKills))
	}
	if e.forksRefused > 0 {
		all = append(all, limitHit("limit of %d processes and threads reached, new ones refused: %d (raise it with --pids)", e.limits.Pids, e.forksRefused))
	}
	for _, refused := range e.refusedCalls() {
		all = append(all, spec.Violation{Kind: "syscall", Detail: refused})
	}
	all = append(all, e.network.violations()...)
	for _, full := range e.full {
		all = append(all, limitHit("%s", full.violation))
	}
	return all
}

// runningTime returns the running time of the command. A detached command may have ended long before
// the call of Wait, so runningTime uses the time of the end if the agent reports one.
func (p *Process) runningTime(exit agent.Exit) time.Duration {
	took := time.Since(p.StartedAt)
	if exit.Ended.IsZero() {
		return took
	}
	return min(took, max(0, exit.Ended.Sub(p.StartedAt)))
}
