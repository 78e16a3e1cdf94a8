package publisher

import (
	"io"
	"net"
	"strconv"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

const (
	// maxStreams bounds the TCP connections of a sandbox at one time.
	maxStreams = 1024
	// connectTime bounds the wait for a server in the sandbox.
	connectTime = 10 * time.Second
	// pause follows a failure of a socket: the process may have too many files for a while.
	pause = 100 * time.Millisecond
)

// serveStreams passes the connections of a listener to a port of the sandbox. The client of a
// connection beyond the bound is reset.
func serveStreams(l *net.TCPListener, port uint16, b *counter) {
	_ = descriptor.AcceptAll(l.AcceptTCP, func(c *net.TCPConn) {
		if !b.acquire(maxStreams) {
			reset(c)
			return
		}
		go func() {
			defer b.release()
			forward(c, port)
		}()
	}, nil) // the listener is never closed
}

// forward connects a client with a port of the sandbox, and copies until both directions have ended.
// Without a server the client is reset.
func forward(client *net.TCPConn, port uint16) {
	server, err := dialInside(port)
	if err != nil {
		reset(client)
		return
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		copyOne(server, client)
	}()
	copyOne(client, server)
	<-ended
	_ = client.Close() // both directions have ended
	_ = server.Close() // as above
}

// copyOne copies one direction, and passes on its end. An error of one direction ends both.
func copyOne(to, from *net.TCPConn) {
	_, err := io.Copy(to, from)
	if err == nil {
		err = to.CloseWrite()
	}
	if err != nil {
		reset(to)
		reset(from)
	}
}

// reset closes a connection so that the other end gets an error. It may be called again.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0) // a closed connection needs no reset
	_ = c.Close()      // as above
}

// dialInside connects to a port of the sandbox. The process is in the sandbox's network namespace.
func dialInside(port uint16) (*net.TCPConn, error) {
	d := net.Dialer{Timeout: connectTime}
	number := strconv.Itoa(int(port))
	c, err := d.Dial("tcp", net.JoinHostPort("127.0.0.1", number))
	if err != nil {
		c, err = d.Dial("tcp", net.JoinHostPort("::1", number))
	}
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil //nolint:forcetypeassert // of TCP
}
