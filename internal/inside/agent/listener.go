package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"
)

// backlog is how many hosts may wait to be taken by the agent at once.
const backlog = 64

// Listen makes the socket that an agent takes further hosts from, to be given
// to it as descriptor 5, and closed once it has it. Only the caller's user can
// connect. The path may be of any length; nothing may be there.
func Listen(path string) (*os.File, error) {
	f, err := listen(path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s for a sandbox's agent: %w", path, err)
	}
	return f, nil
}

func listen(path string) (_ *os.File, err error) {
	fd, err := seqpacket()
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	// Before it has a name: of a socket that is the mode its name will have.
	if err := unix.Fchmod(fd, 0o600); err != nil {
		return nil, os.NewSyscallError("fchmod", err)
	}
	err = descriptor.ShortPath(path, func(short string) error {
		return os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrUnix{Name: short}))
	})
	if err != nil {
		return nil, err
	}
	if err := unix.Listen(fd, backlog); err != nil {
		return nil, errors.Join(os.NewSyscallError("listen", err), os.Remove(path))
	}
	return f, nil
}

// Dial connects to the agent that has the listener of that path. The error is
// ErrGone if no agent has it any more, a *VersionError if the agent is of
// another time.
func Dial(ctx context.Context, path string) (*Conn, error) {
	c, err := dial(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("connect to the sandbox's agent: %w", err)
	}
	return c, nil
}

func dial(ctx context.Context, path string) (*Conn, error) {
	fd, err := seqpacket()
	if err != nil {
		return nil, err
	}
	err = descriptor.ShortPath(path, func(short string) error { return connect(ctx, fd, &unix.SockaddrUnix{Name: short}) })
	if err != nil {
		descriptor.CloseFD(fd)
		return nil, err
	}
	c := &Conn{control: ownSocket(fd, "agent-control"), sending: semaphore.NewWeighted(1)}
	if err := c.greeting(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// connect waits while the agent, which may be paused, takes nobody: a socket
// that does not block says so with EAGAIN, and nothing announces the change.
func connect(ctx context.Context, fd int, a *unix.SockaddrUnix) error {
	for {
		err := unix.Connect(fd, a)
		switch err {
		case nil:
			return nil
		case unix.ECONNREFUSED:
			return ErrGone
		case unix.EINTR:
			continue
		case unix.EAGAIN:
		default:
			return os.NewSyscallError("connect", err)
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func seqpacket() (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	return fd, os.NewSyscallError("socket", err)
}
