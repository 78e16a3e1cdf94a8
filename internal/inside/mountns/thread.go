package mountns

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// A Thread is an operating system thread in another mount namespace than
// the process.
type Thread struct {
	work chan func()
}

// Start returns a thread with a mount namespace of its own. Its mounts are visible to the
// thread and to children that are started from it, and to no other thread or process. They
// are gone with these: the host never has a mount of a sandbox that it could keep. The
// caller must stop the thread.
//
// The working directory of the thread is "/", since the one of the process may have been removed.
func Start() (*Thread, error) {
	return startThread(func() error {
		if err := UnshareMounts(); err != nil {
			return err
		}
		return unix.Chdir("/") // unshare(2) of the mounts has given the thread a working directory of its own
	})
}

// startThread returns a thread that begins with enter. It must be stopped.
func startThread(enter func() error) (*Thread, error) {
	t := &Thread{work: make(chan func())}
	ready := make(chan error)
	go t.loop(enter, ready)
	if err := <-ready; err != nil {
		return nil, err
	}
	return t, nil
}

func (t *Thread) loop(enter func() error, ready chan<- error) {
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

// UnshareMounts gives the calling thread a copy of its mount namespace. Mounts and
// unmounts of the original still reach the copy, but not the other way round: the copy
// keeps no mount busy that the host unmounts.
func UnshareMounts() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount / as slave: %w", err)
	}
	return nil
}

// Do runs f on the thread and returns its error.
func (t *Thread) Do(f func() error) error {
	done := make(chan error)
	t.work <- func() { done <- f() }
	return <-done
}

// Stop ends the thread. Nothing may be done on it afterwards.
func (t *Thread) Stop() { close(t.work) }
