package launcher

import (
	"sync"

	"golang.org/x/sys/unix"
)

// PID 1 of a sandbox is a child of the process that made the sandbox. It stays a zombie
// until that process reaps it. No goroutine waits for each PID 1: the process reaps ended
// ones whenever it makes or removes a sandbox.

// children are the PID 1s that this process has to reap.
type children struct {
	mu sync.Mutex
	// pids is guarded by mu.
	pids map[int]bool
}

// adopt remembers a child. Its number alone is enough: nobody else gets it
// before the child is reaped.
func (c *children) adopt(pid int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pids[pid] = true
}

// reap reaps the children that have ended.
func (c *children) reap() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for pid := range c.pids {
		reaped, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
		if reaped == pid || err == unix.ECHILD { // the program's own handling of SIGCHLD was faster
			delete(c.pids, pid)
		}
	}
}
