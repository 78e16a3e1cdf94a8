package protocol

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
)

// SharedSocket is the default socket of a launcher with rules for other users.
const SharedSocket = hostpaths.LauncherSocket

// Dial connects to the launcher that listens on a socket.
func Dial(ctx context.Context, socket string) (*Client, error) {
	conn, err := dial(ctx, socket)
	if err != nil {
		return nil, unreachable(socket, err)
	}
	peer := peerOf(conn)
	c, err := newClient(ctx, conn, socket)
	if err != nil {
		return nil, err
	}
	select {
	case <-c.greeted:
		return c, nil
	case <-c.ended:
		err = c.err
	case <-ctx.Done():
		if err = ctx.Err(); errors.Is(err, context.DeadlineExceeded) {
			err = fault.Worded(fmt.Sprintf("launcher %s %v: %s", socket, fault.ErrUnavailable, silence(peer)), []error{fault.ErrUnavailable, err})
		}
	}
	return nil, errors.Join(err, c.Close())
}

// peerOf is the process that listens, 0 if that cannot be told.
func peerOf(conn *net.UnixConn) int {
	var peer *unix.Ucred
	err := descriptor.Use(conn, func(fd int) (err error) {
		peer, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return err
	})
	if err != nil {
		return 0
	}
	return int(peer.Pid)
}

// AwaitStopped waits until a signal or a tracer has stopped the process that listens on a socket, and then says so. It
// looks at each interval. The text is empty if ctx ends before, or if the process cannot be examined.
func AwaitStopped(ctx context.Context, socket string, interval time.Duration) string {
	ticks := time.NewTicker(interval)
	defer ticks.Stop()
	for peer := 0; ; {
		select {
		case <-ctx.Done():
			return ""
		case <-ticks.C:
		}
		if peer == 0 { // the second connection is only for a client that waits for a while
			conn, err := dial(ctx, socket)
			if err != nil {
				return ""
			}
			peer = peerOf(conn)
			_ = conn.Close() // nothing was sent
		}
		if peer == 0 {
			return ""
		}
		if process.IsStopped(peer) {
			return fmt.Sprintf("launcher %s: %s", socket, silence(peer))
		}
	}
}

// silence is the reason why the process that listens does not answer.
func silence(peer int) string {
	if peer > 0 && process.IsStopped(peer) {
		return fmt.Sprintf("its process %d is stopped; continue it with: kill -CONT %[1]d", peer)
	}
	return "its process has accepted no request in time; it is overloaded, or it is no launcher"
}

func unreachable(socket string, err error) error {
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("launcher %s %w: no launcher listens there; %s", socket, fault.ErrUnavailable, launcherAdvice(socket))
	case errors.Is(err, os.ErrPermission):
		return fault.Worded(fmt.Sprintf("launcher %s: the mode of its socket or of a directory above keeps you out: %v; run this as root, "+
			"or ask root for a place in the group of the socket and for a rule (docs/launcher.md)", socket, err),
			[]error{fault.ErrRefused, err})
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	return fmt.Errorf("launcher %s %w: %w", socket, fault.ErrUnavailable, err)
}

// launcherAdvice says how to get a launcher on a socket.
func launcherAdvice(socket string) string {
	if os.Geteuid() == 0 {
		return "start it with: sandbox-runtime launcher --socket " + socket
	}
	return "run this as root, or ask root for a launcher with a rule for you: sandbox-runtime launcher --socket " + socket +
		" --rules FILE --group GROUP (docs/launcher.md)"
}

func dial(ctx context.Context, socket string) (*net.UnixConn, error) {
	var conn net.Conn
	err := descriptor.ShortPath(socket, func(short string) (err error) {
		var d net.Dialer
		conn, err = d.DialContext(ctx, "unix", short)
		return err
	})
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}
