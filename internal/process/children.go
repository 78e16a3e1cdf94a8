package process

import (
	"sync"

	"golang.org/x/sys/unix"
)

// Children are the children of this process that it has to reap. An ended child stays a zombie until
// then. No goroutine waits for each of them: Reap reaps all that have ended. The zero value has no
// children.
type Children struct {
	mu sync.Mutex
	// pids is guarded by mu.
	pids map[int]bool
}

// Adopt remembers a child by its process id. No other process gets the same id before the child
// is reaped.
func (c *Children) Adopt(pid int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pids == nil {
		c.pids = map[int]bool{}
	}
	c.pids[pid] = true
}

// Reap reaps the children that have ended.
func (c *Children) Reap() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for pid := range c.pids {
		reaped, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
		if reaped == pid || err == unix.ECHILD { // the program's own handling of SIGCHLD was faster
			delete(c.pids, pid)
		}
	}
}
