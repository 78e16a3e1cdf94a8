package resolver

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"
)

// The bounds of the work at one time. One sandbox has at most an eighth of all.
const (
	maxWork        = 512
	maxWorkPerPeer = maxWork / 8
	// littleWork is how much each sandbox may have even if all together have maxWork: a few busy sandboxes do not stop
	// the names of the others.
	littleWork = 4
	// idleTime is how long a TCP connection may be silent.
	idleTime = 10 * time.Second
	// maxPacket is the longest query over UDP, in bytes.
	maxPacket = 4096
	// pause follows a failure of a socket: the system may have too many open files for a while.
	pause = 100 * time.Millisecond
)

// A load counts the work of each sandbox, by its address.
type load struct {
	mu    sync.Mutex
	total int
	peers map[netip.Addr]int
}

// take is false for a peer, or a resolver, that has all the work that it may have.
func (l *load) take(peer netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.peers[peer] >= maxWorkPerPeer || l.total >= maxWork && l.peers[peer] >= littleWork {
		return false
	}
	l.total++
	l.peers[peer]++
	return true
}

func (l *load) give(peer netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.peers[peer]--; l.peers[peer] == 0 {
		delete(l.peers, peer)
	}
}

// serve answers until one of the sockets is closed.
func (f forwarder) serve(packets *net.UDPConn, streams *net.TCPListener) error {
	l := &load{peers: map[netip.Addr]int{}}
	failed := make(chan error, 2)
	go func() { failed <- f.servePackets(packets, l) }()
	go func() { failed <- f.serveStreams(streams, l) }()
	err := <-failed
	return errors.Join(err, packets.Close(), streams.Close(), <-failed)
}

func (f forwarder) servePackets(c *net.UDPConn, l *load) error {
	buffer := make([]byte, maxPacket)
	for {
		n, peer, err := c.ReadFromUDPAddrPort(buffer)
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err != nil {
			time.Sleep(pause)
			continue
		}
		if !l.take(peer.Addr()) {
			continue // as a busy name server: the client asks again
		}
		query := append([]byte(nil), buffer[:n]...)
		go func() {
			defer l.give(peer.Addr())
			if answer := f.answer(context.Background(), "udp", query); answer != nil {
				_, _ = c.WriteToUDPAddrPort(answer, peer) // a sandbox that is gone needs no answer
			}
		}()
	}
}

func (f forwarder) serveStreams(listener *net.TCPListener, l *load) error {
	for {
		c, err := listener.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err != nil {
			time.Sleep(pause)
			continue
		}
		peer := c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr() //nolint:forcetypeassert // of a TCP connection
		if !l.take(peer) {
			_ = c.Close() // the client sees the end; no error matters
			continue
		}
		go func() {
			defer l.give(peer)
			f.serveStream(c)
		}()
	}
}

// serveStream answers the queries of a connection, one after the other. A client that does not
// read its answers ends it.
func (f forwarder) serveStream(c net.Conn) {
	defer c.Close()
	stream := messages{c, true}
	for {
		if err := c.SetDeadline(time.Now().Add(idleTime)); err != nil {
			return
		}
		query, err := stream.read()
		if err != nil {
			return
		}
		answer := f.answer(context.Background(), "tcp", query)
		if answer == nil || stream.write(answer) != nil {
			return
		}
	}
}
