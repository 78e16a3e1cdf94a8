package jobs

import (
	"context"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
)

// A farewell is the time that the processes of an exec have for their own end (docs/adr/0030).
type farewell struct {
	grace time.Duration // 0: none

	mu sync.Mutex
	// until is the end of the grace. It is zero while nothing has asked the command to end.
	until time.Time
	// asked says that the runtime has asked all processes of the exec to end, while the command
	// still ran.
	asked bool
}

// begin begins the grace, unless the runtime has asked the command to end.
func (f *farewell) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.asked {
		f.until = time.Now().Add(f.grace)
	}
}

// graceEnd returns the end of the grace, and whether the runtime has sent SIGTERM to all processes.
func (f *farewell) graceEnd() (until time.Time, asked bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.until, f.asked
}

// asksToEnd says whether programs take a signal of their caller as a request to end.
func asksToEnd(sig syscall.Signal) bool {
	return sig == unix.SIGTERM || sig == unix.SIGINT || sig == unix.SIGHUP || sig == unix.SIGQUIT
}

// sendTerm asks the processes of a leaf to end. A stopped process goes on, so that it can end.
// An error is none of the caller's: after the grace the processes are killed.
func sendTerm(leaf *cgroups.Leaf) {
	_ = leaf.Signal(unix.SIGTERM)
	_ = leaf.Signal(unix.SIGCONT)
}

// emptyCheck is the longest time between two checks for processes during a grace.
const emptyCheck = 20 * time.Millisecond

// awaitEmpty waits until no process is left, until the time, or until stop is closed.
func awaitEmpty(populated func() (bool, error), until time.Time, stop <-chan struct{}) {
	for wait := time.Millisecond; ; wait = min(2*wait, emptyCheck) {
		left := time.Until(until)
		if alive, err := populated(); err != nil || !alive || left <= 0 {
			return
		}
		select {
		case <-time.After(min(wait, left)):
		case <-stop:
			return
		}
	}
}

// Terminate ends the command and all processes that it has started: it sends SIGTERM, waits for
// their end during the grace, and kills the rest. It kills at once without a grace, in a paused
// sandbox, and if the command itself has ended. [Process.Wait] then tells that the caller gave up.
func (p *Process) Terminate() error {
	p.gaveUp.Store(true)
	return p.terminate()
}

func (p *Process) terminate() error {
	if p.askToEnd() {
		p.awaitLast()
	}
	return p.Kill()
}

// askToEnd sends SIGTERM to all processes of the exec, once. It returns whether a grace has begun.
func (p *Process) askToEnd() bool {
	f := &p.farewell
	if f.grace <= 0 || p.Kept != nil || p.Inside == nil || p.Live.Paused() {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.asked {
		return true
	}
	if p.Inside.HasEnded() || !p.isExecuted() {
		return false
	}
	f.asked = true
	f.until = time.Now().Add(f.grace)
	sendTerm(p.Leaf)
	return true
}

// executeTime bounds the wait for the execution of a command that has to end.
const executeTime = 200 * time.Millisecond

// isExecuted waits for the execution of the command: before that its process takes no SIGTERM.
func (p *Process) isExecuted() bool {
	ctx, cancel := context.WithTimeout(context.Background(), executeTime)
	defer cancel()
	return p.Inside.Started(ctx) == nil
}

// awaitLast waits for the end of all processes during the grace. A pause ends the wait.
func (p *Process) awaitLast() {
	until, _ := p.farewell.graceEnd()
	awaitEmpty(func() (bool, error) {
		if p.Live.Paused() {
			return false, nil
		}
		return p.Leaf.Populated()
	}, until, nil)
}

// seeOff gives the processes that an ended command has left the rest of the grace. Without a
// request to end there is none: the processes have outlived their command.
func (p *Process) seeOff() {
	if statedir.RemovalBegun(p.Live.Path()) { // EndAll has sent SIGTERM to all processes, and the removal kills the rest
		if grace := p.Config.Config.Grace.Time(); grace > 0 && !p.Live.Paused() {
			awaitEmpty(p.Leaf.Populated, time.Now().Add(grace), nil)
		}
		return
	}
	if p.Kept != nil {
		if until, asked := p.Kept.graceEnd(p.farewell.grace); asked {
			awaitEmpty(p.Leaf.Populated, until, nil)
		}
		return
	}
	until, asked := p.farewell.graceEnd()
	if time.Until(until) <= 0 || p.Live.Paused() {
		return
	}
	if !asked { // the caller's signal has reached the process group of the command only
		sendTerm(p.Leaf)
	}
	p.awaitLast()
}

// askedName is a file that says that the runtime has sent SIGTERM to a detached exec after its
// timeout. Its time is the time of the signal.
const askedName = "asked"

// graceEnd returns the end of the grace of a detached exec whose timeout has passed.
func (d *detachedExec) graceEnd(grace time.Duration) (until time.Time, asked bool) {
	info, err := os.Lstat(d.path(askedName))
	if err != nil {
		return until, false
	}
	since := max(0, time.Since(info.ModTime())) // the clock may have been set back
	return time.Now().Add(grace - since), true
}

// wasAsked says that the runtime has sent SIGTERM.
func (d *detachedExec) wasAsked() bool { return statedir.Exists(d.path(askedName)) }

// askDetached sends SIGTERM to a detached exec after its timeout, once, and waits for the end of
// its processes during the grace. It returns false if stop was closed before the end of the grace.
func (v *Session) askDetached(e ExecID, leaf *cgroups.Leaf, grace time.Duration, stop <-chan struct{}) bool {
	d := &detachedExec{Dir: v.execDir(e)}
	if grace <= 0 || v.Paused() {
		return true
	}
	until, asked := d.graceEnd(grace)
	if !asked {
		if err := os.WriteFile(d.path(askedName), nil, 0o600); err != nil {
			return true
		}
		until = time.Now().Add(grace)
		sendTerm(leaf)
	}
	awaitEmpty(leaf.Populated, until, stop)
	select {
	case <-stop:
		return false
	default:
		return true
	}
}

// EndAll ends the commands of the sandbox before its removal: it sends SIGTERM to the processes of
// all execs, and waits during the grace of the sandbox for the end of the processes. It kills none.
func EndAll(group *cgroups.Group, grace time.Duration, stop <-chan struct{}) {
	if grace <= 0 {
		return
	}
	populated := func() (bool, error) {
		names, err := group.PopulatedLeaves()
		return len(names) > 0, err
	}
	names, err := group.PopulatedLeaves()
	if err != nil || len(names) == 0 {
		return
	}
	if frozen, err := group.Frozen(); err != nil || frozen {
		return
	}
	for _, name := range names {
		leaf, err := group.OpenLeaf(name)
		if err != nil {
			continue // its processes have just ended
		}
		sendTerm(leaf)
		_ = leaf.Close() // closes descriptors only
	}
	awaitEmpty(populated, time.Now().Add(grace), stop)
}
