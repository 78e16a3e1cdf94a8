package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/names"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/rules"
)

// The tests run in a network namespace of their own, in which each address is local, and in a mount
// namespace, in which the host has a search domain.
const inside = "_PROXY_TEST_INSIDE"

func TestMain(m *testing.M) {
	if os.Getenv(inside) == "" {
		os.Exit(enter())
	}
	if err := errors.Join(capture(), search()); err != nil {
		fmt.Fprintln(os.Stderr, "prepare the namespaces of the tests:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func enter() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return cmd.ProcessState.ExitCode()
}

func capture() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	for _, own := range []string{"198.18.0.2/32", "fd53::2/128"} {
		a, err := netlink.ParseAddr(own)
		if err == nil {
			err = netlink.AddrAdd(lo, a)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", own, err)
		}
	}
	// Without this a socket of IPv6 listens at the addresses of interfaces only.
	if err := os.WriteFile("/proc/sys/net/ipv6/ip_nonlocal_bind", []byte("1"), 0); err != nil {
		return err
	}
	for _, all := range []string{"0.0.0.0/0", "::/0"} {
		_, to, _ := net.ParseCIDR(all)
		r := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: to, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST}
		if err := netlink.RouteAdd(r); err != nil {
			return fmt.Errorf("%s: %w", all, err)
		}
	}
	return nil
}

func search() error {
	f, err := os.CreateTemp("", "resolv.conf")
	if err != nil {
		return err
	}
	defer f.Close()
	defer os.Remove(f.Name())
	if _, err := f.WriteString("nameserver 127.0.0.1\nsearch evil.test\n"); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return err
	}
	return unix.Mount(f.Name(), "/etc/resolv.conf", "", unix.MS_BIND, "")
}

// A world is a sandbox and its outside. The host's own address is 9.9.9.9.
type world struct {
	*Sandbox
	records map[string][]netip.Addr // of the name server
	events  chan Event

	mu    sync.Mutex
	asked []string // of the name server
}

func (w *world) questions() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.asked)
}

// fixedRules are rules that do not change, and count nothing.
type fixedRules struct{ *rules.List }

func (f fixedRules) Destination(a netip.Addr, port uint16) rules.Verdict { return f.Address(a, port) }

func newWorld(t *testing.T, allow, deny []string, records map[string][]string) *world {
	t.Helper()
	list, err := rules.New(allow, deny)
	if err != nil {
		t.Fatal(err)
	}
	table, err := names.New(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{records: map[string][]netip.Addr{}, events: make(chan Event, 2048)}
	for name, addresses := range records {
		for _, a := range addresses {
			w.records[name+"."] = append(w.records[name+"."], netip.MustParseAddr(a))
		}
	}
	server := w.serveNames(t)
	w.Sandbox = &Sandbox{
		Rules: fixedRules{list}, Names: table, Report: func(e Event) { w.events <- e },
		IsHost: func(a netip.Addr) bool { return a == netip.MustParseAddr("9.9.9.9") },
		Resolver: &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", server)
		}},
	}
	return w
}

// serveNames is a name server. It answers over TCP, so that an answer can have 1,000 addresses.
func (w *world) serveNames(t *testing.T) string {
	l := listen(t, "127.0.0.1:0")
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go w.answer(c)
		}
	}()
	return l.Addr().String()
}

func (w *world) answer(c net.Conn) {
	defer c.Close()
	b := make([]byte, 65537)
	n, err := c.Read(b)
	var m dnsmessage.Message
	if err != nil || m.Unpack(b[2:n]) != nil {
		return
	}
	q := m.Questions[0]
	w.mu.Lock()
	w.asked = append(w.asked, q.Name.String())
	w.mu.Unlock()
	m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
	h := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1}
	for _, a := range w.records[q.Name.String()] {
		switch {
		case a.Is4() && q.Type == dnsmessage.TypeA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: a.As4()}})
		case a.Is6() && q.Type == dnsmessage.TypeAAAA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
		}
	}
	if w.records[q.Name.String()] == nil {
		m.RCode = dnsmessage.RCodeNameError
	}
	packed, _ := m.Pack()
	c.Write(append([]byte{byte(len(packed) >> 8), byte(len(packed))}, packed...))
}

func listen(t *testing.T, address string) *net.TCPListener {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.(*net.TCPListener)
}

// address is the synthetic address of a name.
func (w *world) address(t *testing.T, name string, port uint16) netip.AddrPort {
	t.Helper()
	p, err := w.Names.Of(name)
	if err != nil {
		t.Fatal(err)
	}
	return netip.AddrPortFrom(p.V4, port)
}

// captured serves the connections to an address, until the test ends.
func (w *world) captured(t *testing.T, to netip.AddrPort) string {
	return w.capturedIdle(t, to, time.Minute)
}

func (w *world) capturedIdle(t *testing.T, to netip.AddrPort, idle time.Duration) string {
	t.Helper()
	l := listen(t, to.String())
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.AcceptTCP()
			if err != nil {
				return
			}
			all.Go(func() { serve(ctx, c, w.Sandbox, idle) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		cancel()
		all.Wait()
	})
	return to.String()
}

func (w *world) event(t *testing.T) Event {
	t.Helper()
	select {
	case e := <-w.events:
		return e
	case <-time.After(30 * time.Second):
		t.Fatal("no event")
		return Event{}
	}
}

func dialTo(t *testing.T, address string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c.(*net.TCPConn)
}

// server serves each connection to an address by a function. The result counts the connections.
func server(t *testing.T, address string, serve func(c *net.TCPConn)) *connectionCounter {
	t.Helper()
	l := listen(t, address)
	s := &connectionCounter{}
	go func() {
		for {
			c, err := l.AcceptTCP()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.connections++
			s.mu.Unlock()
			go func() {
				defer c.Close()
				serve(c)
			}()
		}
	}()
	return s
}

type connectionCounter struct {
	mu          sync.Mutex
	connections int
}

func (s *connectionCounter) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connections
}
