package resolver

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// The host's name servers can trust the host more than a sandbox: they get queries only, and no request for a
// whole zone.
func TestOnlyQueriesReachTheNameServers(t *testing.T) {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		b := make([]byte, maxPacket)
		for {
			n, peer, err := server.ReadFrom(b)
			if err != nil {
				return
			}
			b[2] |= 0x80 // a response
			_, _ = server.WriteTo(b[:n], peer)
		}
	}()
	f := forwarder{func() []string { return []string{server.LocalAddr().String()} }}
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
		if err := got.Unpack(f.answer(t.Context(), "udp", packed)); err != nil {
			t.Fatal(err)
		}
		if got.ID != 7 || !got.Response || got.RCode != x.want || !slices.Equal(got.Questions, m.Questions) {
			t.Errorf("operation %d, type %v: %+v, want %v", x.op, x.kind, got, x.want)
		}
	}
}

// A connection that cannot be accepted, for example because the system has too many open files, does not end
// the resolver.
func TestTheResolverOutlivesFailedAccepts(t *testing.T) {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	packets, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- forwarder{func() []string { return nil }}.serve(packets, l) }()
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
	l.Close()
	packets.Close()
	<-ended
}

// Busy sandboxes have all the work that a resolver has. Another one still gets a little.
func TestAFewBusySandboxesLeaveRoom(t *testing.T) {
	l := &load{peers: map[netip.Addr]int{}}
	busy := netip.MustParseAddr("10.0.0.1")
	for l.total < maxWork {
		for !l.take(busy) {
			busy = busy.Next()
		}
	}
	if l.take(busy) || l.peers[busy] != maxWorkPerPeer {
		t.Errorf("a busy one has %d", l.peers[busy])
	}
	other, n := netip.MustParseAddr("10.0.1.1"), 0
	for l.take(other) {
		n++
	}
	if n != littleWork {
		t.Errorf("another one has %d, want %d", n, littleWork)
	}
}
