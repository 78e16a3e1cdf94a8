package launcher

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// A mountThread is an operating system thread in another mount namespace than
// the process.
type mountThread struct {
	work chan func()
}

// startMountThread returns a thread with a mount namespace of its own. What is
// mounted there no other thread and no other process sees, but for the children
// that are started from it, and it is gone with them and the thread: the host
// never has a mount of a sandbox that it could keep. It must be stopped.
func startMountThread() (*mountThread, error) { return startThread(unshareMounts) }

// startThread returns a thread that begins with enter. It must be stopped.
func startThread(enter func() error) (*mountThread, error) {
	t := &mountThread{work: make(chan func())}
	ready := make(chan error)
	go t.loop(enter, ready)
	if err := <-ready; err != nil {
		return nil, err
	}
	return t, nil
}

func (t *mountThread) loop(enter func() error, ready chan<- error) {
	// Never unlocked: the Go runtime ends a thread whose goroutine returns
	// locked, and nobody else ever runs on it.
	runtime.LockOSThread()
	err := enter()
	ready <- err
	if err != nil {
		return
	}
	for f := range t.work {
		f()
	}
}

// unshareMounts gives the calling thread a copy of its mount namespace, which
// the original's mounts and unmounts still reach but not the other way round:
// what the host unmounts is not kept busy here.
func unshareMounts() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount / as slave: %w", err)
	}
	return nil
}

// do runs f on the thread and returns its error.
func (t *mountThread) do(f func() error) error {
	done := make(chan error)
	t.work <- func() { done <- f() }
	return <-done
}

// stop ends the thread. Nothing may be done on it afterwards.
func (t *mountThread) stop() { close(t.work) }
