package upstream

import (
	"bufio"
	"crypto/tls"
	"net"
)

// A Conn is a connection to a server or to a proxy: a *net.TCPConn or a *SecureConn.
type Conn interface {
	net.Conn
	CloseWrite() error
}

// A SecureConn is a connection with TLS to a proxy.
type SecureConn struct {
	*tls.Conn
	tcp *net.TCPConn
	// ahead has bytes that Peek has read.
	ahead *bufio.Reader
}

func (c *SecureConn) Read(b []byte) (int, error) { return c.ahead.Read(b) }

// Wait waits for a byte, for the end of the connection or for the deadline of reads. Read returns the byte.
func (c *SecureConn) Wait() error { _, err := c.ahead.Peek(1); return err }

// Buffered is the number of bytes that Read has without the connection.
func (c *SecureConn) Buffered() int { return c.ahead.Buffered() }

// TCP is the connection below TLS.
func (c *SecureConn) TCP() *net.TCPConn { return c.tcp }
