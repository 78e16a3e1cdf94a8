package capture

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/netns"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

func TestMain(m *testing.M) {
	if os.Getenv(userVariable) != "" {
		userMain()
	}
	os.Exit(testhost.Run(m))
}

var webPorts = []spec.PortRange{{First: 443, Last: 443}, {First: 8000, Last: 8009}, {First: 80, Last: 80}, {First: 65500, Last: 65535}}

// withTPROXY is the method of Open.
var withTPROXY method = (*editor).captureWithTPROXY

// withoutTPROXY fails as on a kernel without TPROXY: the kernel refuses one rule.
func withoutTPROXY(in *editor, l *Listeners, families []family, ports []spec.PortRange) error {
	other := in.filter.AddTable(&nftables.Table{Name: "other", Family: nftables.TableFamilyINet})
	chain := in.filter.AddChain(&nftables.Chain{Table: other, Name: "output", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityFilter})
	in.filter.AddRule(&nftables.Rule{Table: other, Chain: chain, Exprs: rule{
		&expr.Immediate{Register: scratch, Data: []byte{0, 1}},
		&expr.TProxy{Family: ipv4.protocol, TableFamily: unix.NFPROTO_INET, RegPort: scratch},
	}})
	return in.captureWithTPROXY(l, families, ports)
}

// needTPROXY skips a test on a kernel without TPROXY.
func needTPROXY(t testing.TB) {
	t.Helper()
	testhost.NeedRoot(t, "network namespaces are made")
	has, err := HasTPROXY()
	if err != nil {
		t.Fatal(err)
	}
	if !has {
		t.Skip("needs TPROXY in nftables")
	}
}

// withEach runs a test with TPROXY and without.
func withEach(t *testing.T, test func(*testing.T, method)) {
	t.Helper()
	testhost.NeedRoot(t, "network namespaces are made")
	t.Run("TPROXY", func(t *testing.T) {
		needTPROXY(t)
		test(t, withTPROXY)
	})
	t.Run("listeners", func(t *testing.T) { test(t, withoutTPROXY) })
}

// newBox makes a namespace that captures. Its listeners answer with the destination.
func newBox(t testing.TB, m method, ports []spec.PortRange) (*os.File, *Listeners) {
	t.Helper()
	testhost.NeedRoot(t, "network namespaces are made")
	namespace := netnstest.New(t)
	return namespace, openBox(t, namespace, m, ports)
}

func openBox(t testing.TB, namespace *os.File, m method, ports []spec.PortRange) *Listeners {
	t.Helper()
	l, err := open(namespace, ports, m)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// serveText answers each connection with a text, or with its local address, until the test ends.
func serveText(t testing.TB, l net.Listener, text string) {
	done := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			answer := text
			if answer == "" {
				answer = c.LocalAddr().String()
			}
			fmt.Fprint(c, answer)
			c.Close()
		}
	}()
}

func serve(t testing.TB, l *Listeners) {
	t.Helper()
	for _, f := range slices.Concat(l.Streams, l.DNSStreams) {
		serveText(t, listener(t, f), "")
	}
}

func listener(t testing.TB, f *os.File) net.Listener {
	t.Helper()
	l, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// patience bounds each step. A refusal is an error of its own, and no timeout.
const patience = 30 * time.Second

// dial connects from the namespace.
func dial(namespace *os.File, network, address string) (c net.Conn, err error) {
	err = netns.Do(namespace, func() (err error) {
		c, err = net.DialTimeout(network, address, patience)
		return err
	})
	return c, err
}

// fetchText is the text that a server gives to a client in the namespace.
func fetchText(namespace *os.File, address string) (string, error) {
	c, err := dial(namespace, "tcp", address)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	text, err := io.ReadAll(c)
	return string(text), err
}

func wantAnswer(t *testing.T, namespace *os.File, address, want string) {
	t.Helper()
	if got, err := fetchText(namespace, address); err != nil || got != want {
		t.Errorf("%s: %q, %v; want %q", address, got, err, want)
	}
}

func wantRefused(t *testing.T, namespace *os.File, address string) {
	t.Helper()
	if got, err := fetchText(namespace, address); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("%s: %q, %v; want %v", address, got, err, unix.ECONNREFUSED)
	}
}

func TestConnectionsToAllowedPortsReachTheListener(t *testing.T) {
	withEach(t, func(t *testing.T, m method) {
		namespace, l := newBox(t, m, webPorts)
		serve(t, l)
		for _, address := range []string{
			"1.2.3.4:443", "1.2.3.4:80", "10.0.0.1:8000", "192.0.2.1:8005", "255.1.1.1:8009", "169.254.169.254:80",
			"198.18.0.3:65500", "9.9.9.9:65535", "[2001:db8::1]:443", "[fd53:0:0:1::7]:8005", "[64:ff9b::1]:65535",
			"198.18.0.1:443", "[fd53::1]:443", // by no own address
		} {
			wantAnswer(t, namespace, address, address)
		}
		// An IPv6 socket that asks for IPv4.
		wantAnswer(t, namespace, "[::ffff:1.2.3.4]:443", "1.2.3.4:443")
	})
}

func TestOtherTrafficIsRefusedAtOnce(t *testing.T) {
	withEach(t, func(t *testing.T, m method) {
		namespace, l := newBox(t, m, webPorts)
		serve(t, l)
		netnstest.Listen(t, namespace, ":9999") // of the sandbox
		for _, address := range []string{"1.2.3.4:442", "1.2.3.4:7999", "1.2.3.4:8010", "[2001:db8::1]:65499", "1.2.3.4:9999", "[2001:db8::1]:9999"} {
			wantRefused(t, namespace, address)
		}
		for _, address := range []string{"1.2.3.4:443", "8.8.8.8:5353", "[2001:db8::1]:443"} {
			c, err := dial(namespace, "udp", address)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(patience))
			if _, err = c.Write([]byte("?")); err == nil {
				_, err = c.Read(make([]byte, 1))
			}
			if !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("UDP %s: %v", address, err)
			}
		}
		for network, echo := range map[string]byte{"ip4:icmp": 8, "ip6:ipv6-icmp": 128} {
			address := "1.2.3.4"
			if echo == 128 {
				address = "2001:db8::1"
			}
			c, err := dial(namespace, network, address)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(patience))
			// The kernel computes the checksum of IPv6.
			if _, err := c.Write([]byte{echo, 0, 0xf7, 0xff, 0, 0, 0, 0}); err != nil {
				t.Fatal(err)
			}
			if n, err := c.Read(make([]byte, 99)); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("echo to %s: %d bytes, %v", address, n, err)
			}
		}
	})
}

// Without listeners, connections are refused, and reach no server inside.
func TestNothingIsCapturedWithoutListeners(t *testing.T) {
	needTPROXY(t)
	namespace, l := newBox(t, withTPROXY, webPorts)
	serveText(t, netnstest.Listen(t, namespace, ":443"), "own")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	for _, address := range []string{"1.2.3.4:443", "[2001:db8::1]:443", "8.8.8.8:53"} {
		wantRefused(t, namespace, address)
	}
	// The next owner opens them again.
	serve(t, openBox(t, namespace, withTPROXY, webPorts[1:]))
	wantAnswer(t, namespace, "1.2.3.4:8000", "1.2.3.4:8000")
	wantRefused(t, namespace, "1.2.3.4:443")
}

func TestAServerInsideAtPort53PreventsTheCapture(t *testing.T) {
	withEach(t, func(t *testing.T, m method) {
		namespace := netnstest.New(t)
		netnstest.Listen(t, namespace, "127.0.0.1:53")
		before := namespaceState(t, namespace)
		if _, err := open(namespace, webPorts, m); !errors.Is(err, unix.EADDRINUSE) {
			t.Error(err)
		}
		if after := namespaceState(t, namespace); after != before {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
	})
}

func TestAKernelWithoutTheRulesIsUnsupported(t *testing.T) {
	needTPROXY(t)
	for err, want := range map[error]bool{unix.ENOENT: true, unix.EOPNOTSUPP: true, unix.EPERM: false} {
		if got := supported(fmt.Errorf("conn.Receive: %w", err)); errors.Is(got, errors.ErrUnsupported) != want || !errors.Is(got, err) {
			t.Errorf("%v: %v", err, got)
		}
	}
	namespace, l := newBox(t, withTPROXY, nil)
	in, err := enter(namespace)
	if err != nil {
		t.Fatal(err)
	}
	defer in.close()
	port, err := portOf(l.Streams[0])
	if err != nil {
		t.Fatal(err)
	}
	// As if the kernel had no TPROXY for this hook.
	chain := in.filter.AddChain(&nftables.Chain{Table: table(), Name: "output", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityFilter})
	in.filter.AddRule(&nftables.Rule{Table: table(), Chain: chain, Exprs: ipv4.capture(port)})
	if err := in.flush(); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("TPROXY at output: %v", err)
	}
}
