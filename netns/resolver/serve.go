package resolver

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

const (
	// idleTime is how long a TCP connection may be silent.
	idleTime = 10 * time.Second
	// maxPacket is the longest query over UDP, in bytes. The router's packet filter refuses longer ones.
	maxPacket = 1500
	// pause follows a failure of a socket: the system may have too many open files for a while.
	pause = 100 * time.Millisecond
)

// serve answers until one of the sockets is closed.
func (f forwarder) serve(packets *net.UDPConn, streams *net.TCPListener) error {
	failed := make(chan error, 2)
	go func() { failed <- f.servePackets(packets) }()
	go func() { failed <- f.serveStreams(streams) }()
	err := <-failed
	return errors.Join(err, packets.Close(), streams.Close(), <-failed)
}

func (f forwarder) servePackets(c *net.UDPConn) error {
	buffer, control := make([]byte, maxPacket), make([]byte, unix.CmsgSpace(4))
	for {
		n, controls, _, peer, err := c.ReadMsgUDPAddrPort(buffer, control)
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err != nil {
			time.Sleep(pause)
			continue
		}
		for _, message := range splitQueries(buffer[:n], control[:controls]) {
			f.servePacket(c, peer, append([]byte(nil), message...))
		}
	}
}

func (f forwarder) servePacket(c *net.UDPConn, peer netip.AddrPort, message []byte) {
	q, answer, isOpen := f.accept(peer.Addr(), false, message)
	reply := func(answer []byte) {
		if answer != nil {
			_, _ = c.WriteToUDPAddrPort(answer, peer) // a sandbox that is gone needs no answer
		}
	}
	if isOpen {
		go func() { reply(f.answer(context.Background(), q)) }()
	} else {
		reply(answer)
	}
}

func (f forwarder) serveStreams(listener *net.TCPListener) error {
	return descriptor.AcceptAll(listener.AcceptTCP, func(c *net.TCPConn) {
		peer := c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr() //nolint:forcetypeassert // of a TCP connection
		if !f.clients.acquire(peer) {
			_ = c.Close() // the client sees the end; no error matters
			return
		}
		go func() {
			defer f.clients.release(peer)
			f.serveStream(c, peer)
		}()
	}, nil)
}

// serveStream answers the queries of a connection, one after the other. A client that does not read its answers ends
// it, and so does a refused query.
func (f forwarder) serveStream(c net.Conn, peer netip.Addr) {
	defer c.Close()
	for {
		if err := c.SetDeadline(time.Now().Add(idleTime)); err != nil {
			return
		}
		message, err := readMessage(c)
		if err != nil {
			return
		}
		q, answer, isOpen := f.accept(peer, true, message)
		if isOpen {
			answer = f.answer(context.Background(), q)
		}
		if answer == nil || writeMessage(c, answer) != nil || !isOpen {
			return
		}
	}
}
