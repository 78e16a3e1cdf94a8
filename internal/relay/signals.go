package relay

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// Grace is how long a command may take to end by itself after a signal that
// should end it.
const Grace = 5 * time.Second

// signaled is a *sandbox.Process.
type signaled interface {
	Signal(sig syscall.Signal) error
	Resize(size sandbox.Winsize) error
}

// Signals passes the signals that end a program to the command. If the command does not end,
// Signals kills the command with all that it has started.
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
	over    bool           // the command has ended
	paging  bool           // the terminal's ^C is a pager's
	stopped bool           // signals have their usual effect
}

// Catch begins to relay signals, and returns a context that the relay cancels. The caller must
// call Stop. A program calls Catch once.
func Catch(ctx context.Context) (context.Context, *Signals) {
	ctx, cancel := context.WithCancelCause(ctx)
	r := &Signals{cancel: cancel, signals: make(chan os.Signal, 16)}
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
		_ = p.Signal(r.waiting) // it may just have ended
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

// giveUp ends the whole where the command has not ended by itself.
func (r *Signals) giveUp(on syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.over {
		r.cancel(errors.New("the command did not end on " + unix.SignalName(on)))
	}
}

func (r *Signals) handle(s syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case s == unix.SIGPIPE:
		// The reader of the output has enough; the copying sees it too.
	case r.stopped:
		signal.Reset(s)
		_ = unix.Kill(unix.Getpid(), s) // a process can always send itself a signal
	case s == unix.SIGWINCH:
		if r.process != nil {
			_ = r.process.Resize(terminalSize()) // it may just have ended
		}
	case r.paging && s == unix.SIGINT:
	case !r.starts || r.asked != 0 || r.over:
		r.cancel(errors.New("interrupted by " + unix.SignalName(s)))
	default:
		r.asked = s
		if r.process == nil {
			r.waiting = s
		} else {
			_ = r.process.Signal(s) // it may just have ended
		}
		time.AfterFunc(Grace, func() { r.giveUp(s) })
	}
}
