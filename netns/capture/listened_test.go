package capture

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/netns"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// The same connections would reach the listener of 0.0.0.0 or ::, with an own address as their
// destination.
func TestWithoutTPROXYNoConnectionToAnOwnAddressReachesAListener(t *testing.T) {
	namespace, l := newBox(t, withoutTPROXY, webPorts)
	serve(t, l)
	for _, ip := range []string{"127.0.0.1", "127.9.9.9", "198.18.0.2", "0.0.0.0", "::1", "fd53::2", "::", "::ffff:127.0.0.1", "::ffff:198.18.0.2"} {
		for _, port := range []string{"80", "443", "8009", "65535"} {
			wantRefused(t, namespace, net.JoinHostPort(ip, port))
		}
	}
	// The rules refuse the connection, and not a missing listener.
	netnstest.Shell(t, namespace, "nft flush chain inet sandbox-runtime-capture prerouting; nft add rule inet sandbox-runtime-capture prerouting accept")
	wantAnswer(t, namespace, "127.0.0.1:443", "127.0.0.1:443")
}

func TestWithoutTPROXYServersKeepOtherPorts(t *testing.T) {
	testhost.NeedRoot(t, "network namespaces are made")
	namespace := netnstest.New(t)
	serveText(t, netnstest.Listen(t, namespace, "127.0.0.1:5432"), "own")
	serve(t, openBox(t, namespace, withoutTPROXY, webPorts))
	serveText(t, netnstest.Listen(t, namespace, "[::]:8080"), "own")
	for _, address := range []string{"127.0.0.1:5432", "127.0.0.1:8080", "198.18.0.2:8080", "[::1]:8080", "[fd53::2]:8080"} {
		wantAnswer(t, namespace, address, "own")
	}
	wantAnswer(t, namespace, "1.2.3.4:443", "1.2.3.4:443")
	for _, address := range []string{"1.2.3.4:5432", "1.2.3.4:8080", "[2001:db8::1]:8080"} {
		wantRefused(t, namespace, address)
	}
}

func TestWithoutTPROXYNothingInsideTakesTheListeners(t *testing.T) {
	testhost.NeedRoot(t, "network namespaces are made")
	namespace := netnstest.New(t)
	early := bindEarly(t, namespace, "1.2.3.4:443")
	l := openBox(t, namespace, withoutTPROXY, webPorts)
	if err := unix.Listen(early, 1); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a socket that has had the port before listens: %v", err)
	}
	try := func() {
		for _, ip := range []string{"0.0.0.0", "::", "127.0.0.1", "::1", "::ffff:1.2.3.4", "198.18.0.2", "1.2.3.4", "2001:db8::1"} {
			for _, port := range []uint16{80, 443, 8005, 65535} {
				a := netip.AddrPortFrom(netip.MustParseAddr(ip), port)
				if err := listenShared(unix.SOCK_STREAM, a); !errors.Is(err, unix.EADDRINUSE) && !errors.Is(err, unix.EACCES) {
					t.Errorf("taking %s: %v", a, err)
				}
			}
		}
	}
	asNobody(t, namespace, try)
	if err := netns.Do(namespace, func() error { try(); return nil }); err != nil { // the user that has opened them
		t.Fatal(err)
	}
	serve(t, l)
	wantAnswer(t, namespace, "1.2.3.4:443", "1.2.3.4:443")
	serveText(t, netnstest.Listen(t, namespace, "1.2.3.4:5555"), "stolen")
	wantRefused(t, namespace, "1.2.3.4:5555")
}

// bindEarly gives a port to a socket that does not listen yet. Any other socket can share the port until
// one of them listens.
func bindEarly(t *testing.T, namespace *os.File, address string) (fd int) {
	t.Helper()
	err := netns.Do(namespace, func() (err error) {
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(fd) })
		for option, level := range map[int]int{unix.SO_REUSEADDR: unix.SOL_SOCKET, unix.IP_FREEBIND: unix.SOL_IP} {
			if err := unix.SetsockoptInt(fd, level, option, 1); err != nil {
				return err
			}
		}
		return unix.Bind(fd, sockaddr(netip.MustParseAddrPort(address)))
	})
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// A server that has taken a port while the listeners were closed gets no connection to a foreign address.
func TestWithoutTPROXYAServerInsideNeverAnswersForAForeignAddress(t *testing.T) {
	namespace, l := newBox(t, withoutTPROXY, webPorts)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	serveText(t, netnstest.Listen(t, namespace, ":443"), "stolen")
	for _, address := range []string{"1.2.3.4:443", "[2001:db8::1]:443"} {
		err := netns.Do(namespace, func() error {
			c, err := net.DialTimeout("tcp", address, time.Second)
			if err == nil {
				c.Close()
			}
			return err
		})
		if err == nil {
			t.Errorf("the server has a connection to %s", address)
		}
	}
	wantRefused(t, namespace, "1.2.3.4:80")
	if _, err := open(namespace, webPorts, withoutTPROXY); !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(fmt.Sprint(err), "port 443") {
		t.Errorf("the port is taken: %v", err)
	}
}

func TestWithoutTPROXYManyPortsAreRefused(t *testing.T) {
	testhost.NeedRoot(t, "network namespaces are made")
	namespace := netnstest.New(t)
	before := namespaceState(t, namespace)
	for _, wrong := range [][]spec.PortRange{{{First: 1, Last: 65535}}, {{First: 100, Last: 164}}, {{First: 1, Last: 63}, {First: 100, Last: 102}}} {
		if _, err := open(namespace, wrong, withoutTPROXY); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(fmt.Sprint(err), "nft_tproxy") {
			t.Errorf("%v: %v", wrong, err)
		}
	}
	if after := namespaceState(t, namespace); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	// 53 has its sockets anyway.
	most := []spec.PortRange{{First: 1, Last: 63}, {First: 80, Last: 80}, {First: 443, Last: 443}}
	l := openBox(t, namespace, withoutTPROXY, most)
	if len(l.Streams) != 2*MaxPorts {
		t.Errorf("%d listeners", len(l.Streams))
	}
	serve(t, l)
	for _, address := range []string{"1.2.3.4:1", "1.2.3.4:53", "1.2.3.4:443", "[2001:db8::1]:63"} {
		wantAnswer(t, namespace, address, address)
	}
	if err := SetPorts(namespace, []spec.PortRange{{First: 1, Last: 65535}}); !errors.Is(err, errors.ErrUnsupported) || errors.Is(err, ErrReopen) {
		t.Errorf("all ports: %v", err)
	}
}

func TestWithoutTPROXYPortsChangeWithNewListeners(t *testing.T) {
	namespace, l := newBox(t, withoutTPROXY, webPorts)
	streams := streamsAt(t, l, "1.2.3.4:443")
	c := connect(t, namespace, streams, "1.2.3.4:443")
	same := []spec.PortRange{{First: 65500, Last: 65535}, {First: 80, Last: 80}, {First: 8000, Last: 8005}, {First: 8003, Last: 8009}, {First: 443, Last: 443}}
	if err := SetPorts(namespace, same); err != nil {
		t.Errorf("the same ports: %v", err)
	}
	for _, other := range [][]spec.PortRange{nil, webPorts[1:], append(webPorts[:4:4], spec.PortRange{First: 81, Last: 81})} {
		if err := SetPorts(namespace, other); !errors.Is(err, ErrReopen) || errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%v: %v", other, err)
		}
	}
	c.wantEnd(t, false)
	// The caller ends the connections together with the listeners.
	if err := errors.Join(c.server.Close(), streams.Close(), l.Close()); err != nil {
		t.Fatal(err)
	}
	serve(t, openBox(t, namespace, withoutTPROXY, []spec.PortRange{{First: 443, Last: 443}, {First: 22, Last: 22}}))
	wantAnswer(t, namespace, "1.2.3.4:443", "1.2.3.4:443")
	wantAnswer(t, namespace, "[2001:db8::1]:22", "[2001:db8::1]:22")
	wantRefused(t, namespace, "1.2.3.4:80")
	serveText(t, netnstest.Listen(t, namespace, "127.0.0.1:80"), "own")
	wantAnswer(t, namespace, "127.0.0.1:80", "own")
}

func TestHasTPROXYAgreesWithOpen(t *testing.T) {
	namespace, _ := newBox(t, withTPROXY, webPorts)
	has, err := HasTPROXY()
	if err != nil {
		t.Fatal(err)
	}
	table := netnstest.Shell(t, namespace, "nft list ruleset")
	if has != strings.Contains(table, "tproxy") || has == strings.Contains(table, "listened") {
		t.Errorf("has: %v; %s", has, table)
	}
}
