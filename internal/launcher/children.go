package launcher

import (
	"golang.org/x/sys/unix"
)

// A PID 1 is the child of the process that made its sandbox, and stays a zombie
// until that has reaped it, whoever ended it. There is no goroutine to wait for
// each: this process looks around whenever it makes or removes a sandbox.

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
