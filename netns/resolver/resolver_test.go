package resolver

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/nameserver"
)

// The host's name servers can trust the host more than a sandbox: they get queries only, and no request for a
// whole zone.
func TestOnlyQueriesReachTheNameServers(t *testing.T) {
	f := newForwarder(serversWith(t, dnsmessage.RCodeSuccess))
	const query, notify, update = 0, 4, 5
	const incremental = dnsmessage.Type(251)
	for _, x := range []struct {
		op   dnsmessage.OpCode
		kind dnsmessage.Type
		want dnsmessage.RCode
	}{
		{query, dnsmessage.TypeA, dnsmessage.RCodeSuccess},
		{query, dnsmessage.TypeALL, dnsmessage.RCodeSuccess},
		{query, dnsmessage.TypeAXFR, dnsmessage.RCodeRefused},
		{query, incremental, dnsmessage.RCodeRefused},
		{notify, dnsmessage.TypeSOA, dnsmessage.RCodeNotImplemented},
		{update, dnsmessage.TypeSOA, dnsmessage.RCodeNotImplemented},
	} {
		q := dnsmessage.Question{Name: dnsmessage.MustNewName("some.example."), Type: x.kind, Class: dnsmessage.ClassINET}
		m := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, OpCode: x.op}, Questions: []dnsmessage.Question{q}}
		packed, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		var got dnsmessage.Message
		asked, answer, isOpen := f.accept(client, false, packed)
		if isOpen {
			answer = f.answer(t.Context(), asked)
		}
		if err := got.Unpack(answer); err != nil {
			t.Fatal(err)
		}
		if got.ID != 7 || !got.Response || got.RCode != x.want || !slices.Equal(got.Questions, m.Questions) {
			t.Errorf("operation %d, type %v: %+v, want %v", x.op, x.kind, got, x.want)
		}
	}
}

// serving starts a resolver without name servers. It ends with the test.
func serving(t *testing.T) (l *net.TCPListener, packets *net.UDPConn, ended <-chan error) {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	packets, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	failed, done := make(chan error, 1), make(chan struct{})
	go func() {
		failed <- newForwarder(noServers).serve(packets, l)
		close(done)
	}()
	t.Cleanup(func() { l.Close(); packets.Close(); <-done })
	return l, packets, failed
}

// A connection that cannot be accepted, for example because the system has too many open files, does not end
// the resolver.
func TestTheResolverOutlivesFailedAccepts(t *testing.T) {
	l, packets, ended := serving(t)
	for _, failUntil := range []func(time.Time) error{l.SetDeadline, packets.SetReadDeadline} {
		for _, deadline := range []time.Time{time.Now(), {}} {
			if err := failUntil(deadline); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * pause)
		}
	}
	select {
	case err := <-ended:
		t.Fatalf("the resolver has ended: %v", err)
	default:
	}
}

// Busy sandboxes have all the work that a resolver has. Another one still gets a little.
func TestAFewBusySandboxesLeaveRoom(t *testing.T) {
	l := newLoad(512)
	busy := client
	for l.total < l.most {
		for !l.acquire(busy) {
			busy = busy.Next()
		}
	}
	if l.acquire(busy) || l.peers[busy] != maxPerPeer {
		t.Errorf("a busy one has %d", l.peers[busy])
	}
	other, n := netip.MustParseAddr("10.0.1.1"), 0
	for l.acquire(other) {
		n++
	}
	if n != littleWork {
		t.Errorf("another one has %d, want %d", n, littleWork)
	}
}

var client = netip.MustParseAddr("10.0.0.1")

func noServers() []netip.AddrPort { return nil }

// packed is a query with the id 7 for an address.
func packed(t *testing.T) []byte {
	t.Helper()
	q := dnsmessage.Question{Name: dnsmessage.MustNewName("some.example."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 7}, Questions: []dnsmessage.Question{q}}
	text, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func code(t *testing.T, answer []byte) dnsmessage.RCode {
	t.Helper()
	var m dnsmessage.Message
	if err := m.Unpack(answer); err != nil || m.ID != 7 || !m.Response || len(m.Questions) != 1 {
		t.Fatalf("%+v, %v", m, err)
	}
	return m.RCode
}

// A sandbox has 64 queries without an answer. One more is refused at once, also over TCP, and another sandbox goes on.
func TestASandboxHasFewQueriesWithoutAnAnswer(t *testing.T) {
	f := newForwarder(noServers)
	var first query
	for i := range 2 * maxPerPeer {
		q, answer, isOpen := f.accept(client, i%2 == 0, packed(t))
		if i == 0 {
			first = q
		}
		if isOpen != (i < maxPerPeer) || !isOpen && code(t, answer) != dnsmessage.RCodeRefused {
			t.Fatalf("query %d: %v, %x", i, isOpen, answer)
		}
	}
	if _, _, isOpen := f.accept(client.Next(), false, packed(t)); !isOpen {
		t.Error("another sandbox is refused")
	}
	if got := code(t, f.answer(t.Context(), first)); got != dnsmessage.RCodeServerFailure {
		t.Errorf("without a server: %v", got)
	}
	if _, _, isOpen := f.accept(client, false, packed(t)); !isOpen {
		t.Error("a query after an answer is refused")
	}
}

// A connection can bring many queries, so the packet filter does not count them.
func TestQueriesOfAConnectionAreBounded(t *testing.T) {
	l, _, _ := serving(t)
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	start := time.Now()
	for answers := range 4 * nameserver.QueryBurst { // a slow machine may never reach the bound
		if bound := nameserver.QueryBurst + int(time.Since(start).Seconds()*nameserver.QueryRate) + 1; answers > bound {
			t.Fatalf("%d answers, want %d at most", answers, bound)
		}
		if err := writeMessage(c, packed(t)); err != nil {
			t.Fatal(err)
		}
		answer, err := readMessage(c)
		if err != nil {
			t.Fatal(err)
		}
		if code(t, answer) == dnsmessage.RCodeRefused {
			if _, err := readMessage(c); answers < nameserver.QueryBurst || err == nil {
				t.Errorf("%d answers, then %v", answers, err)
			}
			return
		}
	}
}

// serversWith are name servers that answer each query with one of the codes.
func serversWith(t *testing.T, codes ...dnsmessage.RCode) func() []netip.AddrPort {
	t.Helper()
	var servers []netip.AddrPort
	for _, code := range codes {
		server, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { server.Close() })
		go func() {
			b := make([]byte, maxPacket)
			for {
				n, peer, err := server.ReadFrom(b)
				if err != nil {
					return
				}
				b[2] |= 0x80 // a response
				b[3] |= byte(code)
				_, _ = server.WriteTo(b[:n], peer)
			}
		}()
		servers = append(servers, netip.MustParseAddrPort(server.LocalAddr().String()))
	}
	return func() []netip.AddrPort { return servers }
}

// A server of one company knows the names of this company only, and refuses others.
func TestTheNextServerIsAskedAfterARefusal(t *testing.T) {
	const none, refused, failed = dnsmessage.RCodeNameError, dnsmessage.RCodeRefused, dnsmessage.RCodeServerFailure
	for _, x := range []struct {
		codes []dnsmessage.RCode
		want  dnsmessage.RCode
	}{
		{[]dnsmessage.RCode{refused, dnsmessage.RCodeSuccess}, dnsmessage.RCodeSuccess},
		{[]dnsmessage.RCode{failed, dnsmessage.RCodeNotImplemented, none}, none},
		{[]dnsmessage.RCode{none, dnsmessage.RCodeSuccess}, none},
		{[]dnsmessage.RCode{refused, failed}, refused},
	} {
		f := newForwarder(serversWith(t, x.codes...))
		q, _, isOpen := f.accept(client, false, packed(t))
		if got := code(t, f.answer(t.Context(), q)); !isOpen || got != x.want {
			t.Errorf("%v: %v, want %v", x.codes, got, x.want)
		}
	}
}
