package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// Dial connects to the launcher that listens on a socket.
func Dial(ctx context.Context, socket string) (*Client, error) {
	conn, err := dial(ctx, socket)
	if err != nil {
		return nil, unreachable(socket, err)
	}
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
		err = ctx.Err()
	}
	return nil, errors.Join(err, c.Close())
}

func unreachable(socket string, err error) error {
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("launcher %s %w: no launcher listens there; %s", socket, ErrUnavailable, wayTo(socket))
	case errors.Is(err, os.ErrPermission):
		return worded(fmt.Sprintf("launcher %s: the mode of its socket or of a directory above keeps you out: %v; run this as root, "+
			"or ask root for a place in the group of the socket and for a rule (docs/launcher.md)", socket, err),
			[]error{ErrRefused, err})
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	return fmt.Errorf("launcher %s %w: %w", socket, ErrUnavailable, err)
}

// wayTo says how to get a launcher on a socket.
func wayTo(socket string) string {
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
