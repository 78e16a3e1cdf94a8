package capture

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// streamsAt is the listener that gets the connections to an address.
func streamsAt(t *testing.T, l *Listeners, address string) net.Listener {
	t.Helper()
	to := netip.MustParseAddrPort(address)
	for _, f := range l.Streams {
		at := netip.MustParseAddrPort(f.Name())
		if at.Addr().Is4() == to.Addr().Is4() && (at.Port() == to.Port() || at.Port() == 0) {
			return listener(t, f)
		}
	}
	t.Fatalf("no listener for %s", address)
	return nil
}

// A connection has both its ends in the namespace.
type connection struct{ client, server net.Conn }

func connect(t *testing.T, namespace *os.File, l net.Listener, address string) connection {
	t.Helper()
	client, err := dial(namespace, "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return connection{client, server}
}

// wantEnd holds that both ends learn of the end at once, or that the connection still works.
func (c connection) wantEnd(t *testing.T, ends bool) {
	t.Helper()
	for _, pair := range [][2]net.Conn{{c.client, c.server}, {c.server, c.client}} {
		_ = pair[1].SetReadDeadline(time.Now().Add(patience))
		if !ends {
			_, _ = pair[0].Write([]byte("x"))
		}
		_, err := pair[1].Read(make([]byte, 1))
		if ends && !isAny(err, unix.ECONNABORTED, unix.ECONNRESET) || !ends && err != nil {
			t.Errorf("%s to %s: %v", pair[1].LocalAddr(), pair[1].RemoteAddr(), err)
		}
	}
}

func TestPortsChangeAtOnceAndTheirConnectionsEnd(t *testing.T) {
	needTPROXY(t)
	namespace, l := newBox(t, withTPROXY, webPorts)
	streams4, streams6 := listener(t, l.Streams[0]), listener(t, l.Streams[1])
	own := netnstest.Listen(t, namespace, "127.0.0.1:80")
	gone4, gone6 := connect(t, namespace, streams4, "1.2.3.4:80"), connect(t, namespace, streams6, "[2001:db8::1]:80")
	mapped := connect(t, namespace, streams4, "[::ffff:1.2.3.4]:80")
	stays4, stays6, local := connect(t, namespace, streams4, "1.2.3.4:443"), connect(t, namespace, streams6, "[2001:db8::1]:443"), connect(t, namespace, own, "127.0.0.1:80")
	dns := connect(t, namespace, listener(t, l.DNSStreams[0]), "8.8.8.8:53")
	ports := []spec.PortRange{{First: 443, Last: 500}, {First: 444, Last: 444}, {First: 501, Last: 501}}
	for first := uint16(10000); first < 20000; first += 4 { // more than one message holds
		ports = append(ports, spec.PortRange{First: first, Last: first + 2})
	}
	if err := SetPorts(namespace, ports); err != nil {
		t.Fatal(err)
	}
	for _, c := range []connection{gone4, gone6, mapped} {
		c.wantEnd(t, true)
	}
	for _, c := range []connection{stays4, stays6, local, dns} {
		c.wantEnd(t, false)
	}
	serveText(t, streams4, "")
	for _, address := range []string{"1.2.3.4:443", "1.2.3.4:501", "1.2.3.4:10000", "1.2.3.4:19998"} {
		wantAnswer(t, namespace, address, address)
	}
	for _, address := range []string{"1.2.3.4:80", "1.2.3.4:502", "1.2.3.4:10003", "1.2.3.4:19999"} {
		wantRefused(t, namespace, address)
	}
	for _, wrong := range []spec.PortRange{{}, {First: 0, Last: 9}, {First: 9, Last: 8}} {
		if err := SetPorts(namespace, []spec.PortRange{wrong}); err == nil {
			t.Errorf("%v was taken", wrong)
		}
	}
	wantAnswer(t, namespace, "1.2.3.4:443", "1.2.3.4:443")
}

// A port of both sets is never refused.
func TestTheChangeOfPortsIsOneStep(t *testing.T) {
	needTPROXY(t)
	namespace, l := newBox(t, withTPROXY, webPorts)
	serve(t, l)
	stop, done := make(chan struct{}), make(chan error)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if _, err := fetchText(namespace, "1.2.3.4:443"); err != nil {
				done <- err
				return
			}
		}
	}()
	for i := range 50 {
		if err := SetPorts(namespace, webPorts[:1+i%len(webPorts)]); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestRemoveLeavesTheLoopbackAddresses(t *testing.T) {
	withEach(t, func(t *testing.T, m method) {
		namespace := netnstest.New(t)
		before := namespaceState(t, namespace)
		for range 2 { // the second needs the ports again
			l := openBox(t, namespace, m, webPorts)
			streams, queries := streamsAt(t, l, "1.2.3.4:443"), listener(t, l.DNSStreams[0])
			captured := connect(t, namespace, streams, "1.2.3.4:443")
			query, ended := connect(t, namespace, queries, "8.8.8.8:53"), connect(t, namespace, queries, "127.0.0.53:53")
			ended.server.Close() // first: this end waits for old packets
			ended.client.Close()
			all := netnstest.Listen(t, namespace, "0.0.0.0:8443")
			own, local := connect(t, namespace, all, "198.18.0.2:8443"), connect(t, namespace, all, "127.0.0.1:8443")
			if n, err := Connections(namespace); n != 2 || err != nil {
				t.Errorf("%d connections are captured, %v; want 2", n, err)
			}
			if n, err := Remove(namespace); n != 2 || err != nil {
				t.Fatalf("%d connections have ended, %v; want 2", n, err)
			}
			if err := errors.Join(streams.Close(), queries.Close(), l.Close()); err != nil {
				t.Error(err)
			}
			for _, c := range []connection{captured, query, own} {
				c.wantEnd(t, true)
			}
			local.wantEnd(t, false)
			all.Close()
			if after := namespaceState(t, namespace); after != before {
				t.Errorf("before:\n%s\nafter:\n%s", before, after)
			}
			if _, err := dial(namespace, "tcp", "1.2.3.4:443"); !errors.Is(err, unix.ENETUNREACH) {
				t.Errorf("after the removal: %v", err)
			}
		}
		if _, err := Remove(namespace); err != nil {
			t.Error(err)
		}
		if err := SetPorts(namespace, webPorts); err == nil || isAny(err, errors.ErrUnsupported, ErrReopen) {
			t.Errorf("ports of a namespace that captures nothing: %v", err)
		}
	})
}

func TestANamespaceWithoutIPv6CapturesIPv4(t *testing.T) {
	withEach(t, func(t *testing.T, m method) {
		namespace := netnstest.New(t)
		netnstest.Shell(t, namespace, "echo 1 > /proc/sys/net/ipv6/conf/lo/disable_ipv6")
		before := namespaceState(t, namespace)
		l := openBox(t, namespace, m, webPorts)
		for _, f := range slices.Concat(l.Streams, l.DNSPackets, l.DNSStreams) {
			if netip.MustParseAddrPort(f.Name()).Addr().Is6() {
				t.Errorf("a listener of IPv6: %s", f.Name())
			}
		}
		serve(t, l)
		wantAnswer(t, namespace, "1.2.3.4:443", "1.2.3.4:443")
		if c, err := dial(namespace, "tcp", "[2001:db8::1]:443"); err == nil {
			c.Close()
			t.Error("IPv6 is there")
		}
		if _, err := Remove(namespace); err != nil {
			t.Error(err)
		}
		if after := namespaceState(t, namespace); after != before {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
	})
}
