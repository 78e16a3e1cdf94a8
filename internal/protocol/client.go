package protocol

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
)

// A Client asks a launcher, over one trunk. Its methods may be called from several
// goroutines; each call has a socket of its own and waits for no other call.
//
// Errors are those of this package, and the context's if it has ended: the launcher then
// gives up the request, too. ErrUnavailable says that this launcher serves nothing, or
// nothing more.
type Client struct {
	trunk *channel.Conn
	// place of the launcher, for messages.
	place string
	// greeted is closed once the launcher's Hello was good, ended once the
	// trunk is over; err is set before.
	greeted, ended chan struct{}
	err            error
}

// NewClient returns a client on a connection to a launcher, which it takes over.
// It does not wait for the launcher: if that can't serve, the first call says so.
func NewClient(conn *net.UnixConn) (*Client, error) {
	return newClient(context.Background(), conn, "")
}

func newClient(ctx context.Context, conn *net.UnixConn, place string) (*Client, error) {
	trunk, err := channel.OfConn(conn, 0)
	if err != nil {
		return nil, err
	}
	c := &Client{trunk: trunk, place: place, greeted: make(chan struct{}), ended: make(chan struct{})}
	if err := trunk.Send(ctx, Hello{Protocol: Protocol}.Encode()); err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.Join(err, trunk.Close())
	}
	go c.attend()
	return c, nil
}

// attend notices the trunk's end.
func (c *Client) attend() {
	defer close(c.ended)
	c.err = c.listen()
	c.trunk.Close()
}

// listen returns why the trunk is over.
func (c *Client) listen() error {
	body, _, err := c.trunk.Receive(context.Background(), MaxHello)
	if err == nil {
		if err := checkHello(body); err != nil {
			return err
		}
		close(c.greeted)
		// There is no second frame.
		_, _, err = c.trunk.Receive(context.Background(), 0)
	}
	switch {
	case errors.Is(err, os.ErrClosed):
		return net.ErrClosed
	case err == nil:
		err = errors.New("it speaks out of turn")
	case errors.Is(err, io.EOF):
		err = errors.New("it has ended, or closed the connection")
	}
	if c.place == "" {
		return fmt.Errorf("the launcher %w: %w", fault.ErrUnavailable, err)
	}
	return fmt.Errorf("launcher %s %w: %w", c.place, fault.ErrUnavailable, err)
}

// Close ends the connection and with it all of the client's calls: commands that
// are not detached end. It is safe to call twice.
func (c *Client) Close() error {
	err := c.trunk.Close()
	<-c.ended
	return err
}

// Done is closed once the connection is over: Err then says why.
func (c *Client) Done() <-chan struct{} { return c.ended }

// Err is why the connection is over, nil while it is not.
func (c *Client) Err() error {
	select {
	case <-c.ended:
		return c.err
	default:
		return nil
	}
}

// farewell is how long the end of a call and that of the trunk may lie apart
// when a launcher dies.
const farewell = time.Second

// lostError is the error of a call whose socket has ended before its answer.
func (c *Client) lostError() error {
	wait := time.NewTimer(farewell)
	defer wait.Stop()
	select {
	case <-c.ended:
		return c.err
	case <-wait.C:
		return fmt.Errorf("the launcher %w: it gave up the call", fault.ErrUnavailable)
	}
}

// open sends a call's first frame and gives the launcher its end. accept is the most descriptors that come back at once.
func (c *Client) open(ctx context.Context, body []byte, files []*os.File, accept int) (*channel.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ours, theirs, err := channel.Pair(accept)
	if err != nil {
		return nil, err
	}
	if len(body) <= channel.Chunk {
		// It is there when the launcher looks.
		err = ours.Send(ctx, body, files...)
	}
	if err == nil {
		err = c.trunk.SendDescriptors(ctx, nil, []int{theirs})
		if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) {
			err = c.lostError()
		}
	}
	unix.Close(theirs)
	if err == nil && len(body) > channel.Chunk {
		// The launcher reads meanwhile. If it refuses the body, its answer says why.
		if err = ours.Send(ctx, body, files...); errors.Is(err, io.EOF) {
			err = nil
		}
	}
	if err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	return ours, nil
}
