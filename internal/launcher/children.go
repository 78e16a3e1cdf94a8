package launcher

import (
	"golang.org/x/sys/unix"
)

// PID 1 of a sandbox is a child of the process that made the sandbox. It stays a zombie
// until that process reaps it. No goroutine waits for each PID 1: the process reaps ended
// ones whenever it makes or removes a sandbox.

// adopt remembers a child. Its number alone is enough: nobody else gets it
// before the child is reaped.
func (l *Launcher) adopt(pid int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.children[pid] = true
}

// reap reaps the children that have ended.
func (l *Launcher) reap() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for pid := range l.children {
		reaped, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
		if reaped == pid || err == unix.ECHILD { // the program's own handling of SIGCHLD was faster
			delete(l.children, pid)
		}
	}
}
