package launch

import (
	"context"
	"net"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// A Target is a port of a sandbox.
type Target struct {
	// Network is tcp or udp, and may end in 4 or 6.
	Network string `json:"network"`
	// Address is HOST:PORT. The host is empty, localhost or a loopback address.
	Address string `json:"address"`
}

// Dial connects to a port of a sandbox.
//
// Errors: ErrNotFound, ErrNotRunning, *ConfigError for another target, ECONNREFUSED if nothing
// listens.
func (c *Client) Dial(ctx context.Context, id string, to Target) (net.Conn, error) {
	ch, err := c.open(ctx, &Request{Op: OpDial, ID: id, Target: to}, nil, 1)
	if err != nil {
		return nil, err
	}
	defer func() {
		ch.Close()
		ch.Discard()
	}()
	_, files, err := c.receive(ctx, ch)
	if err != nil {
		return nil, err
	}
	defer descriptor.Close(files...)
	if len(files) != 1 {
		return nil, errAnswer
	}
	return net.FileConn(files[0])
}
