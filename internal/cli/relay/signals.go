package relay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// StartGrace is how long a signal waits for a command that is being started, and a pager for its
// end.
const StartGrace = 5 * time.Second

// killMargin is the time after the grace in which the launcher kills the processes that an ended
// command has left. A kill of this program's would hide how the command itself has ended.
const killMargin = 250 * time.Millisecond

// signaled is a *sandbox.Process.
type signaled interface {
	Signal(sig syscall.Signal) error
	Resize(size sandbox.Winsize) error
	Kill() error
	Grace() time.Duration
}

// Signals passes the signals that end a program to the command. If the command does not end within
// its grace, or at a second signal, Signals kills the command with all that it has started.
type Signals struct {
	cancel  context.CancelCauseFunc
	signals chan os.Signal

	mu sync.Mutex
	// process is nil until the command is known to run. The command may run, and print, before
	// that.
	process signaled
	starts  bool
	waiting syscall.Signal // for process; 0: none
	asked   syscall.Signal // the first signal that was to end the command; 0: none
	why     string         // why the command was killed; empty: it was not
	over    bool           // the command has ended
	paging  bool           // the terminal's ^C is a pager's
	stopped bool           // signals have their usual effect
	given   time.Time      // the time of the first signal, or grace, that was to end the whole; zero: none has come
	restore func()         // gives the terminal back; nil: it is as it was
	quit    func(syscall.Signal)
}

// insistTime is the time in which a repeated signal still counts as the one that was to end the whole: timeout(1) sends
// its signal twice. A later signal ends the program at once.
const insistTime = time.Second

// Catch begins to relay signals, and returns a context that the relay cancels. A call to the system can hang and not
// see the end of the context, for example that of a look at a network file system. So a further signal ends the program
// at once, with a message that names prune, the command that removes the rest. The caller must call Stop. A program
// calls Catch once.
func Catch(ctx context.Context, prune string) (context.Context, *Signals) {
	ctx, cancel := context.WithCancelCause(ctx)
	r := &Signals{cancel: cancel, signals: make(chan os.Signal, 16)}
	r.quit = func(s syscall.Signal) {
		fmt.Fprintf(os.Stderr, "a further signal, %s, ends the program at once; something may be left; to remove it, run: %s\n", unix.SignalName(s), prune)
		raise(s)
	}
	for _, s := range []syscall.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGWINCH, unix.SIGPIPE} {
		if !signal.Ignored(s) { // as by nohup
			signal.Notify(r.signals, s)
		}
	}
	go func() {
		for s := range r.signals {
			r.handle(s.(syscall.Signal))
		}
	}()
	return ctx, r
}

// Stop ends the relay: a signal from here on has its usual effect. Package os/signal takes 0.1 ms to give up one
// signal. So Stop gives up only SIGPIPE, because a write raises it at once. The relay gives up another signal when it
// comes.
func (r *Signals) Stop() {
	r.mu.Lock()
	r.stopped = true
	r.mu.Unlock()
	signal.Reset(unix.SIGPIPE)
	r.cancel(nil)
}

// restoring has a signal that ends the program at once call restore first.
func (r *Signals) restoring(restore func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.restore = restore
}

// starting says that the command is about to run. An earlier signal ends the program; a later
// signal waits for the command.
func (r *Signals) starting() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.starts = true
}

// to names the command.
func (r *Signals) to(p signaled) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.process = p
	if r.waiting != 0 {
		r.sendLocked(r.waiting)
	}
}

// sendLocked passes a signal to the command, and kills the command after its grace.
func (r *Signals) sendLocked(s syscall.Signal) {
	p := r.process
	_ = p.Signal(s) // it may just have ended
	grace := p.Grace()
	margin := min(grace, killMargin)
	why := fmt.Sprintf("the command did not end within %s after %s", grace, unix.SignalName(s))
	if grace == 0 {
		why = fmt.Sprintf("the command had no grace after %s", unix.SignalName(s))
	}
	time.AfterFunc(grace+margin, func() { r.giveUp(p, why) })
}

// explain adds to a Result how the command has ended after a signal.
func (r *Signals) explain(result *sandbox.Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.asked == 0 || result.Status != sandbox.StatusExited && result.Status != sandbox.StatusSignaled:
	case r.why != "" && result.Signal == "SIGKILL":
		result.Reason = r.why + ", and was killed with all it had started"
	case result.Signal == "":
		result.Reason += "; it ended by itself after " + unix.SignalName(r.asked)
	}
}

// ended says that the command has ended: signals from here on end the whole, and
// one that has ended the command does not.
func (r *Signals) ended() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.process, r.over = nil, true
}

// Dismissed says that a signal was to end this program together with the command.
// SIGINT and SIGQUIT are keys of a terminal, and are for the command alone.
func (r *Signals) Dismissed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked == unix.SIGTERM || r.asked == unix.SIGHUP
}

// Page runs a pager, whose ^C is: less(1) takes it for the end of a search.
func (r *Signals) Page(pager func() error) error {
	r.setPaging(true)
	defer r.setPaging(false)
	return pager()
}

func (r *Signals) setPaging(paging bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paging = paging
}

// giveUp ends the whole if the command has not ended by itself. p is nil for a command that had not
// started at the signal: a command that has started since has a grace of its own.
func (r *Signals) giveUp(p signaled, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.over && p == r.process {
		r.endLocked(why)
	}
}

// endLocked kills the command, if one is known to run, and ends the whole.
func (r *Signals) endLocked(why string) {
	if r.process != nil {
		r.why = why
		_ = r.process.Kill() // the end of the context kills it, too
	}
	r.cancelLocked(why)
}

// cancelLocked ends the whole.
func (r *Signals) cancelLocked(why string) {
	if r.given.IsZero() {
		r.given = time.Now()
	}
	r.cancel(errors.New(why))
}

// insistLocked ends the program at once if the whole was to end a while ago.
func (r *Signals) insistLocked(s syscall.Signal) {
	if time.Since(r.given) < insistTime {
		return
	}
	if r.restore != nil {
		r.restore()
	}
	r.quit(s)
}

// raise has a signal end the program.
func raise(s syscall.Signal) {
	signal.Reset(s)
	_ = unix.Kill(unix.Getpid(), s) // a process can always send itself a signal
}

func (r *Signals) handle(s syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case s == unix.SIGPIPE:
		// The reader of the output has enough; the copying sees it too.
	case r.stopped:
		raise(s)
	case s == unix.SIGWINCH:
		if r.process != nil {
			_ = r.process.Resize(terminalSize()) // it may just have ended
		}
	case r.paging && s == unix.SIGINT:
	case !r.given.IsZero():
		r.insistLocked(s)
	case r.process != nil && r.asked != 0:
		r.endLocked("the command did not end before a second signal, " + unix.SignalName(s))
	case !r.starts || r.asked != 0 || r.over:
		r.cancelLocked("interrupted by " + unix.SignalName(s))
	case r.process == nil:
		r.asked, r.waiting = s, s
		time.AfterFunc(StartGrace, func() {
			r.giveUp(nil, fmt.Sprintf("the command did not start within %s after %s", StartGrace, unix.SignalName(s)))
		})
	default:
		r.asked = s
		r.sendLocked(s)
	}
}
