package watch

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// told are the events of a whole file system. written are those of a mount, for which the
// kernel does not tell names that come and go. Not FAN_MODIFY, which would double the cost
// of each write(2): a written file is told when it is closed. Only truncate(2) by name, of
// a file that nobody opens, goes unseen.
const (
	written = unix.FAN_CLOSE_WRITE
	told    = written | unix.FAN_CREATE | unix.FAN_DELETE | unix.FAN_RENAME | unix.FAN_ATTRIB | unix.FAN_ONDIR
)

// calm is how long events gather before they are taken, unless a recording ends:
// the kernel joins those that are alike, and keeps 16,384 at most
// (fs.fanotify.max_queued_events).
const calm = 5 * time.Millisecond

// A Group is a group of fanotify. The kernel gives a user 128
// (fs.fanotify.max_user_groups), and each takes some milliseconds to close.
//
// It is safe for concurrent use.
type Group struct {
	file *os.File
	raw  syscall.RawConn
	done chan struct{}

	// mu guards the fields below, and the order of the events.
	mu      sync.Mutex
	buffer  []byte
	watches []*Watch
	closed  bool
}

// Open makes a group. The caller must close it. Errors name the way out.
func Open() (*Group, error) {
	const flags = unix.FAN_CLASS_NOTIF | unix.FAN_REPORT_DFID_NAME_TARGET | unix.FAN_REPORT_TID | unix.FAN_NONBLOCK | unix.FAN_CLOEXEC
	fd, err := unix.FanotifyInit(flags, unix.O_RDONLY|unix.O_LARGEFILE|unix.O_CLOEXEC)
	switch {
	case errors.Is(err, unix.EMFILE):
		return nil, fmt.Errorf("fanotify_init: %w: too many watch already (raise it with sysctl fs.fanotify.max_user_groups)", err)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		return nil, fmt.Errorf("fanotify_init: %w: this needs Linux 5.17 or newer with CONFIG_FANOTIFY", err)
	case err != nil:
		return nil, fmt.Errorf("fanotify_init: %w", err)
	}
	g := &Group{file: os.NewFile(uintptr(fd), "fanotify"), buffer: make([]byte, 32<<10), done: make(chan struct{})}
	if g.raw, err = g.file.SyscallConn(); err != nil {
		return nil, errors.Join(err, g.file.Close())
	}
	go g.follow()
	return g, nil
}

// Close ends all watches of the group.
func (g *Group) Close() error {
	g.mu.Lock()
	g.watches, g.closed = nil, true
	g.mu.Unlock()
	err := g.file.Close()
	<-g.done
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// follow takes events until the group is closed.
func (g *Group) follow() {
	defer close(g.done)
	// An error is that of Close.
	_ = g.raw.Read(func(fd uintptr) bool {
		g.mu.Lock()
		took := g.takeLocked(int(fd))
		closed := g.closed
		g.mu.Unlock()
		if took && !closed {
			time.Sleep(calm)
		}
		return closed
	})
}

// take takes the events that there are.
func (g *Group) take() error {
	return g.raw.Control(func(fd uintptr) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.takeLocked(int(fd))
	})
}

// takeMost bounds the reads of one take: later events came later.
const takeMost = 1024

func (g *Group) takeLocked(fd int) (took bool) {
	for range takeMost {
		n, err := descriptor.Retry(func() (int, error) { return unix.Read(fd, g.buffer) })
		if err != nil || n <= 0 {
			return took
		}
		took = true
		for e := range events(g.buffer[:n]) {
			g.dispatchLocked(e)
		}
	}
	return took
}

func (g *Group) dispatchLocked(e event) {
	for _, w := range g.watches {
		if e.mask&unix.FAN_Q_OVERFLOW != 0 || w.fsid == e.fsid {
			w.tellLocked(e)
		}
	}
}
