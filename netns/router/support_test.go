package router

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process/worker"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/netns"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
	"github.com/sandbox-runtime/sandbox-runtime/netns/publisher"
	"github.com/sandbox-runtime/sandbox-runtime/netns/resolver"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A world is a host and the internet, as network namespaces of the test. One link connects them.
// The internet knows no route to any sandbox.
type world struct {
	host, internet *os.File
	router         Router
	sandboxes      map[uint32]*os.File // that were attached last, by number
}

// Addresses in the world. The host's device to the internet is "wan".
const (
	hostIPv4, internetIPv4 = "9.9.9.1", "9.9.9.9"
	hostIPv6, internetIPv6 = "2600:9::1", "2600:9::9"
)

func newWorld(t *testing.T) *world {
	t.Helper()
	testhost.NeedRoot(t, "network namespaces are made")
	w := &world{host: netnstest.New(t), internet: netnstest.New(t), sandboxes: map[uint32]*os.File{}}
	w.router = Router{Dir: t.TempDir(), Resolv: resolvFile(t), Sandbox: func(number uint32) (*os.File, error) {
		return os.Open(fmt.Sprintf("/proc/self/fd/%d", w.sandboxes[number].Fd()))
	}}
	t.Cleanup(func() {
		if err := unix.Unmount(w.router.pinPath(), unix.MNT_DETACH); err == nil {
			t.Errorf("the router stays mounted at %s", w.router.pinPath())
		}
	})
	netnstest.Shell(t, w.host, "ip link add wan type veth peer name lan && ip link set lan netns /proc/self/fd/4", w.internet)
	netnstest.Shell(t, w.host, "ip link set wan addrgenmode none up && ip address add "+hostIPv4+"/24 dev wan && ip route add default via "+internetIPv4+
		" && ip address add "+hostIPv6+"/64 dev wan nodad && ip route add default via "+internetIPv6)
	netnstest.Shell(t, w.internet, "ip link set lan up && ip address add "+internetIPv4+"/24 dev lan && ip address add "+internetIPv6+"/64 dev lan nodad")
	// The kernel reports the carrier, and adds the route of an IPv6 address, some time later. Tests compare states of the host.
	netnstest.Shell(t, w.host, "for n in $(seq 1000); do ip -o link show wan | grep -q 'state UP' && ip -6 route show table local | grep -q 'local "+hostIPv6+" ' && exit 0; sleep 0.01; done; exit 1")
	return w
}

func (w *world) attach(t *testing.T, m Member) *os.File {
	t.Helper()
	sandbox := netnstest.New(t)
	if w.sandboxes != nil {
		w.sandboxes[m.Number] = sandbox
	}
	w.connect(t, sandbox, m)
	t.Cleanup(func() { w.detach(t, nil, m.Link) })
	return sandbox
}

// connect attaches a sandbox, whose rules open single addresses unless Named says otherwise.
func (w *world) connect(t *testing.T, sandbox *os.File, m Member) {
	t.Helper()
	m.Named = m.namedRules()
	err := w.doOnHost(func() error {
		_, err := w.router.Attach(t.Context(), sandbox, m)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (m Member) namedRules() []spec.AddressRule {
	if m.Named == nil {
		return m.Allow
	}
	return m.Named
}

func (w *world) regrant(t *testing.T, sandbox *os.File, m Member) {
	t.Helper()
	m.Named = m.namedRules()
	err := w.doOnHost(func() error {
		_, err := w.router.Regrant(t.Context(), sandbox, m)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) detach(t *testing.T, sandbox *os.File, link string) (ended int) {
	t.Helper()
	err := w.doOnHost(func() (err error) {
		ended, err = w.router.Detach(context.Background(), sandbox, link)
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return ended
}

// doOnHost calls f on the host.
func (w *world) doOnHost(f func() error) error { return netns.Do(w.host, f) }

// serve answers each TCP connection and each UDP packet at the address with the peer's address.
func serve(t *testing.T, namespace *os.File, address string) {
	t.Helper()
	var tcp net.Listener
	var udp net.PacketConn
	err := netns.Do(namespace, func() (err error) {
		if tcp, err = net.Listen("tcp", address); err != nil {
			return err
		}
		udp, err = net.ListenPacket("udp", address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tcp.Close(); udp.Close() })
	go func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
			_ = c.SetDeadline(time.Now().Add(patience))
			_, _ = c.Read(make([]byte, 1)) // an end with unread bytes would reset the connection
			fmt.Fprint(c, host)
			c.Close()
		}
	}()
	go func() {
		packet := make([]byte, 64)
		for {
			_, peer, err := udp.ReadFrom(packet)
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(peer.String())
			_, _ = udp.WriteTo([]byte(host), peer)
		}
	}()
}

// patience bounds one exchange, and refusals end much earlier. A lost packet costs a second or more.
const patience = 30 * time.Second

// exchange is the server's answer to a client in the namespace.
func exchange(namespace *os.File, network, address string) (string, error) {
	return exchangeWithin(namespace, network, address, patience)
}

func exchangeWithin(namespace *os.File, network, address string, limit time.Duration) (string, error) {
	return exchangeBy(namespace, net.Dialer{Timeout: limit}, network, address)
}

// exchangeBy is exchange with a dialer. The timeout of the dialer bounds the dial, and then the rest of the exchange.
func exchangeBy(namespace *os.File, d net.Dialer, network, address string) (string, error) {
	answer := make([]byte, 64)
	n := 0
	err := netns.Do(namespace, func() error {
		c, err := d.Dial(network, address)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(d.Timeout)); err != nil {
			return err
		}
		if _, err := c.Write([]byte("?")); err != nil {
			return err
		}
		n, err = c.Read(answer)
		return err
	})
	return string(answer[:n]), err
}

func wantAnswer(t *testing.T, namespace *os.File, address, want string) {
	t.Helper()
	for _, network := range []string{"tcp", "udp"} {
		if got, err := exchange(namespace, network, address); err != nil || got != want {
			t.Errorf("%s %s: %q, %v; want %q", network, address, got, err, want)
		}
	}
}

// wantRefusal holds that nothing answers, and that the client learns so at once.
func wantRefusal(t *testing.T, namespace *os.File, address string) {
	t.Helper()
	for _, network := range []string{"tcp", "udp"} {
		got, err := exchange(namespace, network, address)
		var timeout net.Error
		if err == nil || errors.As(err, &timeout) && timeout.Timeout() {
			t.Errorf("%s %s: %q, %v; want a refusal", network, address, got, err)
		}
	}
}

func rules(t *testing.T, texts ...string) (all []spec.AddressRule) {
	t.Helper()
	for _, text := range texts {
		r, err := spec.ParseAddressRule(text)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

func accept(t *testing.T, l net.Listener) net.Conn {
	t.Helper()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func dial(t *testing.T, namespace *os.File, network, address string) (c net.Conn) {
	t.Helper()
	err := netns.Do(namespace, func() (err error) {
		c, err = net.DialTimeout(network, address, patience)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// forwardPackets passes on the packets that come to the address.
func forwardPackets(t *testing.T, namespace *os.File, address string, heard chan<- string) {
	t.Helper()
	var c net.PacketConn
	err := netns.Do(namespace, func() (err error) {
		c, err = net.ListenPacket("udp", address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	go func() {
		packet := make([]byte, 64)
		for {
			n, _, err := c.ReadFrom(packet)
			if err != nil {
				return
			}
			heard <- string(packet[:n])
		}
	}()
}

// hostState is all that a router changes on the host.
func hostState(t *testing.T, w *world) string {
	t.Helper()
	return netnstest.Shell(t, w.host, `ip -o link; ip rule; ip -6 rule; ip route show table all; nft list ruleset
		grep -s . /proc/sys/net/ipv4/conf/*/forwarding /proc/sys/net/ipv6/conf/*/forwarding /proc/sys/net/ipv6/conf/*/force_forwarding /proc/sys/net/ipv4/conf/*/src_valid_mark || true`)
}

func ipv4Of(t *testing.T, sandbox *os.File) string {
	t.Helper()
	return netnstest.Shell(t, sandbox, "ip -4 -o address show eth0 | sed 's/.*inet //;s/\\/.*//'")
}

// victimVariable makes this program one that connects and disconnects sandboxes until a signal
// ends it. Its value is the router's directory.
const victimVariable = "ROUTER_TEST_VICTIM"

func TestMain(m *testing.M) {
	TakeOver()
	resolver.TakeOver()
	publisher.TakeOver()
	if dir := os.Getenv(victimVariable); dir != "" {
		victim(Router{Dir: dir, Resolv: "/etc/resolv.conf"})
	}
	os.Exit(m.Run())
}

// victimPorts are the published ports of the victim's sandboxes.
var victimPorts = []spec.PublishedPort{{Host: netip.MustParseAddrPort("127.0.0.1:8080"), Port: 80}}

func victim(r Router) {
	self, err := process.Of(os.Getpid())
	if err != nil {
		panic(err)
	}
	for i := uint32(0); ; i++ {
		sandbox, err := netns.Create()
		if err != nil {
			panic(err)
		}
		m := Member{Link: fmt.Sprintf("s-%d", i), Number: i % maxNumber}
		if _, err := r.Attach(context.Background(), sandbox, m); err != nil {
			panic(err)
		}
		if i%3 > 0 {
			if err := r.Publish(context.Background(), sandbox, self, m.Link, victimPorts); err != nil {
				panic(err)
			}
			if _, err := r.Detach(context.Background(), sandbox, m.Link); err != nil {
				panic(err)
			}
		}
		sandbox.Close()
	}
}

// resolvFile names a server in the internet.
func resolvFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(path, []byte("# a comment\nsearch example.com\nnameserver "+internetIPv4+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for dir := filepath.Dir(path); dir != os.TempDir(); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil { // the resolver is no root
			t.Fatal(err)
		}
	}
	return path
}

// wantNobody holds that no thread of a process has a privilege.
func wantNobody(t *testing.T, id process.ID) {
	t.Helper()
	without := func() (lacking string) {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", id.Pid))
		if err != nil || len(threads) == 0 {
			t.Fatal("no threads", err)
		}
		for _, thread := range threads {
			status, err := os.ReadFile(thread)
			if errors.Is(err, os.ErrNotExist) {
				continue // it has ended
			}
			for _, line := range []string{"Uid:" + strings.Repeat(fmt.Sprintf("\t%d", worker.ID), 4) + "\n", "Gid:" + strings.Repeat(fmt.Sprintf("\t%d", worker.ID), 4) + "\n", "Groups:\t \n", "CapEff:\t0000000000000000\n", "CapPrm:\t0000000000000000\n", "NoNewPrivs:\t1\n"} {
				if !strings.Contains(string(status), line) {
					lacking = fmt.Sprintf("no %q in %s: %v\n%s", line, thread, err, status)
				}
			}
		}
		return lacking
	}
	lacking := without()
	for end := time.Now().Add(patience); time.Now().Before(end) && lacking != ""; lacking = without() {
		time.Sleep(10 * time.Millisecond) // the process may not have dropped its privileges yet
	}
	if lacking != "" {
		t.Error(lacking)
	}
}
