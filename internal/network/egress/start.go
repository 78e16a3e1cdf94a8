package egress

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process/worker"
)

// Names in the directory of an Egress.
const (
	socketName = "control"
	boxesName  = "boxes"
)

const (
	// idleTime is how long the processes live without a sandbox.
	idleTime = 5 * time.Second
	// answerTime is how long an embedder has for an answer.
	answerTime = 30 * time.Second
)

func (e Egress) socket() string { return filepath.Join(e.Dir, socketName) }

// lock takes the lock of the directory, which must exist. The parent ends only while it holds the exclusive lock.
func (e Egress) lock(ctx context.Context, how descriptor.Hold) (unlock func(), err error) {
	f, err := descriptor.OpenLocked(ctx, e.Dir, unix.O_DIRECTORY|unix.O_NOFOLLOW, how)
	return func() { f.Close() }, err
}

// connectOrStart connects to the parent, and starts one if there is none. The parent does not end as long
// as the caller has not unlocked.
func (e Egress) connectOrStart(ctx context.Context) (*channel.Conn, func(), error) {
	if err := os.MkdirAll(e.Dir, 0o700); err != nil {
		return nil, nil, err
	}
	if err := statedir.CheckOwnDir(e.Dir, unix.O_NOFOLLOW); err != nil {
		return nil, nil, err
	}
	conn, unlock, err := e.connectLocked(ctx, descriptor.Shared, e.connect)
	if !isNoParent(err) {
		return conn, unlock, err
	}
	return e.connectLocked(ctx, descriptor.Exclusive, func() (*channel.Conn, error) {
		conn, err := e.connect() // another client may have started a parent
		if !isNoParent(err) {
			return conn, err
		}
		if err := e.start(); err != nil {
			return nil, err
		}
		return e.connect()
	})
}

// connectLocked connects while it holds the lock. After an error it has unlocked.
func (e Egress) connectLocked(ctx context.Context, how descriptor.Hold, connect func() (*channel.Conn, error)) (*channel.Conn, func(), error) {
	unlock, err := e.lock(ctx, how)
	if err != nil {
		return nil, nil, err
	}
	conn, err := connect()
	if err != nil {
		unlock()
		return nil, nil, fmt.Errorf("connect to the proxied network: %w", err)
	}
	return conn, unlock, nil
}

// start starts a parent. The caller must hold the exclusive lock. The control socket exists when start
// returns.
func (e Egress) start() error {
	dir, err := filepath.Abs(e.Dir)
	if err != nil {
		return err
	}
	listener, err := e.listen()
	if err != nil {
		return err
	}
	defer listener.Close()
	args := []string{dir, cmp.Or(e.idle, idleTime).String(), cmp.Or(e.answerTime, answerTime).String()}
	return withFewCapabilities(func() error {
		return worker.Start(parentKind, args, []*os.File{listener}, func(process.ID) error { return nil })
	})
}

// listen makes the control socket, in the place of one without a parent.
func (e Egress) listen() (*os.File, error) {
	if err := os.RemoveAll(e.socket()); err != nil {
		return nil, err
	}
	var file *os.File
	err := descriptor.ShortPath(e.socket(), func(short string) error {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
		if err != nil {
			return err
		}
		l.SetUnlinkOnClose(false)
		file, err = l.File()
		return errors.Join(err, l.Close())
	})
	return file, err
}

// capabilities are those of the parent: it gives a worker its user, and ends a worker.
func capabilities() []uintptr { return []uintptr{unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_KILL} }

// withFewCapabilities calls f on a thread whose programs have no other capabilities than the parent's,
// also as root.
func withFewCapabilities(f func() error) error {
	done := make(chan error)
	go onOwnThread(func() {
		err := dropCapabilities()
		if err == nil {
			err = f()
		}
		done <- err
	})
	return <-done
}

// onOwnThread calls f on a thread that ends after f. The Go runtime does not end the first thread of the
// process.
func onOwnThread(f func()) {
	runtime.LockOSThread() // and no unlock: the thread ends with the goroutine
	if unix.Gettid() != unix.Getpid() {
		f()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		onOwnThread(f)
	}()
	<-done
	runtime.UnlockOSThread()
}

// dropCapabilities removes the other capabilities from the sets of the thread that a program of root gets.
func dropCapabilities() error {
	for c := uintptr(0); ; c++ {
		if slices.Contains(capabilities(), c) {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if err == unix.EINVAL { // the kernel has no more
			break
		}
		if err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	sets[0].Inheritable, sets[1].Inheritable = 0, 0 // the ambient set shrinks likewise
	return os.NewSyscallError("capset", unix.Capset(&header, &sets[0]))
}
