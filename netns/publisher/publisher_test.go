package publisher

import (
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// A client beyond the bound learns so at once. A place that is free again serves the next one.
func TestConnectionsAreBounded(t *testing.T) {
	server, host := listen(t), listen(t)
	var b counter
	go serveStreams(host, port(server.Addr()), &b)
	b.taken.Store(maxStreams - 1)
	first := dial(t, "tcp", host.Addr())
	accepted, err := server.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if err := firstRead(host.Addr()); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("one client too many: %v", err)
	}
	accepted.Close()
	first.Close()
	testhost.Eventually(t, "the place is free", func() bool { return b.taken.Load() == maxStreams-1 })
	dial(t, "tcp", host.Addr())
	if c, err := server.Accept(); err != nil {
		t.Errorf("the next client: %v", err)
	} else {
		c.Close()
	}
}

// Each UDP client has a socket of its own, up to the bound. A silent client loses the socket, and gets
// another one with its next packet.
func TestUDPClientsAreBoundedAndEnd(t *testing.T) {
	server, host := listenPacket(t), listenPacket(t)
	var b counter
	s := newSwitchboard(host, port(server.LocalAddr()), &b)
	s.idle = 5 * time.Second
	go s.serve()
	b.taken.Store(maxPeers - 1)
	// seen is the socket from which a packet of the client comes, or empty after some time.
	seen := func(c net.Conn, within time.Duration) string {
		t.Helper()
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := server.SetReadDeadline(time.Now().Add(within)); err != nil {
			t.Fatal(err)
		}
		_, peer, err := server.ReadFrom(make([]byte, 1))
		if err != nil {
			return ""
		}
		return peer.String()
	}
	one, two := dial(t, "udp", host.LocalAddr()), dial(t, "udp", host.LocalAddr())
	a := seen(one, testhost.Patience)
	if again := seen(one, testhost.Patience); a == "" || a != again {
		t.Fatalf("the first client has the sockets %q and %q", a, again)
	}
	if c := seen(two, 100*time.Millisecond); c != "" {
		t.Errorf("a client beyond the bound has the socket %v", c)
	}
	testhost.Eventually(t, "the silent client has no socket", func() bool { return b.taken.Load() == maxPeers-1 })
	if seen(one, testhost.Patience) == "" {
		t.Error("the client gets no new socket")
	}
}

// firstRead is the error of a client that connects and reads. A reset can come before the read.
func firstRead(to net.Addr) error {
	c, err := net.DialTimeout("tcp", to.String(), 10*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 1))
	return err
}

func listen(t *testing.T) *net.TCPListener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.(*net.TCPListener)
}

func listenPacket(t *testing.T) *net.UDPConn {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*net.UDPConn)
}

func dial(t *testing.T, network string, to net.Addr) net.Conn {
	t.Helper()
	c, err := net.Dial(network, to.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

func port(a net.Addr) uint16 {
	switch a := a.(type) {
	case *net.TCPAddr:
		return uint16(a.Port)
	case *net.UDPAddr:
		return uint16(a.Port)
	}
	return 0
}
