package nameserver

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"time"
)

// Dial returns a connection to a server for [net.Resolver]. ask, such as [Pool.Ask], sends its queries. The methods of the
// connection are for one goroutine, and ctx bounds its reads.
func Dial(ctx context.Context, server netip.AddrPort, ask Exchange) net.Conn {
	return &conn{ctx: ctx, ask: ask, server: server}
}

// A conn has the last query, and reads the answer to it. The resolver of package net takes a connection with the methods
// of [net.PacketConn] for one of UDP.
type conn struct {
	ctx      context.Context //nolint:containedctx // of one exchange, as net.Resolver has no other way
	ask      Exchange
	server   netip.AddrPort
	query    []byte
	deadline time.Time
}

var errNoQuery = errors.New("no query waits for an answer")

func (c *conn) Write(query []byte) (int, error) {
	c.query = append([]byte(nil), query...)
	return len(query), nil
}

func (c *conn) Read(b []byte) (int, error) {
	if c.query == nil {
		return 0, errNoQuery
	}
	ctx := c.ctx
	if !c.deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, c.deadline)
		defer cancel()
	}
	answer, err := c.ask(ctx, c.server, c.query)
	c.query = nil
	if errors.Is(err, context.DeadlineExceeded) {
		err = os.ErrDeadlineExceeded // as of a socket
	}
	return copy(b, answer), err
}

func (c *conn) ReadFrom(b []byte) (int, net.Addr, error) {
	n, err := c.Read(b)
	return n, c.RemoteAddr(), err
}

func (c *conn) WriteTo(b []byte, _ net.Addr) (int, error) { return c.Write(b) }
func (c *conn) Close() error                              { return nil }
func (c *conn) LocalAddr() net.Addr                       { return &net.UDPAddr{} }
func (c *conn) RemoteAddr() net.Addr                      { return net.UDPAddrFromAddrPort(c.server) }
func (c *conn) SetDeadline(t time.Time) error             { c.deadline = t; return nil }
func (c *conn) SetReadDeadline(t time.Time) error         { return c.SetDeadline(t) }
func (c *conn) SetWriteDeadline(time.Time) error          { return nil }
