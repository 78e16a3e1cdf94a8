package protocol

import (
	"context"
	"net"
	"os"

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
	f, err := openFile(ctx, c, OpDial, id, to)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return net.FileConn(f)
}

// NetworkDecider opens the channel on which the client decides about the connections of a sandbox.
//
// Errors: ErrNotFound, ErrNotRunning, *ConfigError for a sandbox that asks for no decisions.
func (c *Client) NetworkDecider(ctx context.Context, id string) (*os.File, error) {
	return openFile(ctx, c, OpNetworkDecide, id, None{})
}

// openFile returns the file that the launcher opens for a request.
func openFile[Q any](ctx context.Context, c *Client, op SandboxOp[Q, None], id string, q Q) (*os.File, error) {
	ch, err := op.open(ctx, c, About[Q]{id, &q})
	if err != nil {
		return nil, err
	}
	defer func() {
		ch.Close()
		ch.Discard()
	}()
	_, files, err := op.receive(ctx, c, ch)
	if err != nil {
		return nil, err
	}
	if len(files) != 1 {
		descriptor.Close(files...)
		return nil, errAnswer
	}
	return files[0], nil
}
