package frontend

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
)

// catchSignals must come before the process starts, so that none of its signals is missed. No signal ends
// this program half way, not even SIGPIPE when the reader of its messages has gone: the caller gets
// either a container or none.
func catchSignals() <-chan os.Signal {
	// The kernel does not merge signals that are forwarded, so this program must not,
	// either.
	c := make(chan os.Signal, 2048)
	signal.Notify(c)
	return c
}

// attend passes signals on to child, reaps every child of this process, and
// returns when that one has ended: its exit status, 128+n for signal n.
func attend(child *container.Child, signals <-chan os.Signal, resize func(), log *slog.Logger) (int, error) {
	resize()
	for s := range signals {
		switch s {
		case unix.SIGWINCH:
			resize()
		case unix.SIGCHLD:
			status, ended, err := reap(child.Pid())
			if err != nil {
				log.Error(err.Error())
			}
			if ended {
				return shellStatus(status), nil
			}
		case unix.SIGURG:
			// Go's own, to preempt goroutines.
		default:
			if err := child.Signal(s.(unix.Signal)); err != nil && !errors.Is(err, os.ErrProcessDone) {
				log.Error(fmt.Sprintf("forward %v: %v", s, err))
			}
		}
	}
	return 0, errors.New("signal channel closed")
}

// reap collects all that has ended, and tells whether pid is among it.
func reap(pid int) (status unix.WaitStatus, ended bool, err error) {
	for {
		var ws unix.WaitStatus
		got, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ECHILD), err == nil && got == 0:
			return status, ended, nil
		case err != nil:
			return status, ended, fmt.Errorf("wait: %w", err)
		}
		if got == pid {
			status, ended = ws, true
		}
	}
}

func shellStatus(ws unix.WaitStatus) int {
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}
