package nameserver

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

// patience bounds a wait for an answer that comes.
const patience = 30 * time.Second

func listen(t *testing.T, address string) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(address)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func addressOf(c *net.UDPConn) netip.AddrPort { return netip.MustParseAddrPort(c.LocalAddr().String()) }

func newPool(t *testing.T) *Pool {
	t.Helper()
	p := &Pool{}
	t.Cleanup(p.Close)
	return p
}

// query is a query with the id 7 for a name.
func query(t *testing.T, name string) []byte {
	t.Helper()
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 7},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}},
	}
	packed, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return packed
}

// A receivedPacket is a packet of a server.
type receivedPacket struct {
	packet []byte
	from   netip.AddrPort
}

func receive(t *testing.T, c *net.UDPConn) receivedPacket {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 512)
	n, from, err := c.ReadFromUDPAddrPort(b)
	if err != nil {
		t.Fatal(err)
	}
	return receivedPacket{b[:n], from}
}

// response is the response to a query.
func response(query []byte) []byte {
	r := append([]byte(nil), query...)
	r[2] |= 0x80
	return r
}

func send(t *testing.T, c *net.UDPConn, packet []byte, to netip.AddrPort) {
	t.Helper()
	if _, err := c.WriteToUDPAddrPort(packet, to); err != nil {
		t.Fatal(err)
	}
}

type answer struct {
	text []byte
	err  error
}

func askServer(t *testing.T, p *Pool, server netip.AddrPort, name string) <-chan answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	asked, got := query(t, name), make(chan answer, 1)
	go func() {
		defer cancel()
		text, err := p.Ask(ctx, server, asked)
		got <- answer{text, err}
	}()
	return got
}

func wantAnswer(t *testing.T, got <-chan answer, name string) {
	t.Helper()
	a := <-got
	if a.err != nil {
		t.Fatalf("%s: %v", name, a.err)
	}
	if header, question, ok := Parse(a.text); !ok || header.ID != 7 || question.Name.String() != name {
		t.Errorf("%s: %+v, %+v", name, header, question)
	}
}

// All queries of a process leave by few ports, which are random as the ids are.
func TestQueriesShareRandomPorts(t *testing.T) {
	server := listen(t, "127.0.0.1:0")
	p := newPool(t)
	const queries = 1000
	var clients sync.WaitGroup
	for i := range queries {
		name := "n" + strconv.Itoa(i) + ".example."
		got := askServer(t, p, addressOf(server), name)
		clients.Go(func() { wantAnswer(t, got, name) })
		if i%50 == 49 { // less than the buffer of the server has room for
			for range 50 {
				r := receive(t, server)
				send(t, server, response(r.packet), r.from)
			}
		}
	}
	clients.Wait()
	ports := map[uint16]bool{}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, out := range p.ports {
		ports[netip.MustParseAddrPort(out.conn.LocalAddr().String()).Port()] = true
	}
	if len(ports) > Ports || len(ports) < Ports*3/4 {
		t.Errorf("%d queries left by %d ports, want %d", queries, len(ports), Ports)
	}
}

// A port that is a minute old gets no more queries. It still takes the answers to earlier ones.
func TestPortsAreRenewed(t *testing.T) {
	server := listen(t, "127.0.0.1:0")
	p := newPool(t)
	earlier := askServer(t, p, addressOf(server), "earlier.example.")
	first := receive(t, server)
	p.mu.Lock()
	for _, out := range p.ports {
		out.opened = out.opened.Add(-portLife)
	}
	p.mu.Unlock()
	for range 3 * Ports { // the place of the first query comes again, or the old port goes when another one is opened
		later := askServer(t, p, addressOf(server), "later.example.")
		r := receive(t, server)
		if r.from == first.from {
			t.Fatalf("%v is used again", r.from)
		}
		send(t, server, response(r.packet), r.from)
		wantAnswer(t, later, "later.example.")
	}
	send(t, server, response(first.packet), first.from)
	wantAnswer(t, earlier, "earlier.example.")
	taken, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(first.from))
	for end := time.Now().Add(patience); err != nil && time.Now().Before(end); taken, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(first.from)) {
		time.Sleep(time.Millisecond)
	}
	if err != nil {
		t.Fatalf("the old port is still open: %v", err)
	}
	taken.Close()
}

// Answers of other servers, under another id or to another question end no wait.
func TestOnlyTheAnswerOfTheServerCounts(t *testing.T) {
	server, other := listen(t, "127.0.0.1:0"), listen(t, "127.0.0.1:0")
	p := newPool(t)
	got := askServer(t, p, addressOf(server), "some.example.")
	r := receive(t, server)
	wrongID, wrongQuestion, noResponse := response(r.packet), response(query(t, "evil.example.")), r.packet
	wrongID[0]++
	copy(wrongQuestion[:2], r.packet)
	send(t, other, response(r.packet), r.from)
	for _, wrong := range [][]byte{wrongID, wrongQuestion, noResponse, {}, {1}, response(r.packet)[:12]} {
		send(t, server, wrong, r.from)
	}
	select {
	case a := <-got:
		t.Fatalf("a false answer: %+v", a)
	case <-time.After(50 * time.Millisecond):
	}
	send(t, server, response(r.packet), r.from)
	wantAnswer(t, got, "some.example.")
}

// A query to a closed port fails at once. Other queries of the same port of the pool go on.
func TestAnErrorEndsOnlyItsQuery(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		if address[0] == '[' {
			if _, err := net.ListenPacket("udp", address); err != nil {
				continue // a host without IPv6
			}
		}
		server := listen(t, address)
		to := addressOf(server)
		p := newPool(t)
		one, err := openPort(to)
		if err != nil {
			t.Fatal(err)
		}
		p.ports = map[place]*port{}
		for i := range Ports {
			p.ports[place{to, byte(i)}] = one
		}
		first := askServer(t, p, to, "first.example.")
		r := receive(t, server)
		server.Close()
		for range 20 {
			if a := <-askServer(t, p, to, "second.example."); !errors.Is(a.err, unix.ECONNREFUSED) {
				t.Fatalf("%s: a closed port: %+v", address, a)
			}
		}
		server = listen(t, to.String())
		send(t, server, response(r.packet), r.from)
		wantAnswer(t, first, "first.example.")
		third := askServer(t, p, to, "third.example.")
		r = receive(t, server)
		send(t, server, response(r.packet), r.from)
		wantAnswer(t, third, "third.example.")
	}
}

// With too few descriptors the queries leave by the ports that are there.
func TestAPoolOutlivesTooFewDescriptors(t *testing.T) {
	server := listen(t, "127.0.0.1:0")
	p := newPool(t)
	exchange := func() {
		got := askServer(t, p, addressOf(server), "some.example.")
		r := receive(t, server)
		send(t, server, response(r.packet), r.from)
		wantAnswer(t, got, "some.example.")
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	without := func(f func()) {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: limit.Max}); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
				t.Fatal(err)
			}
		}()
		f()
	}
	without(func() {
		if a := <-askServer(t, p, addressOf(server), "some.example."); !errors.Is(a.err, unix.EMFILE) {
			t.Errorf("without any port: %+v", a)
		}
	})
	exchange()
	without(func() {
		for range 2 * Ports {
			exchange()
		}
	})
}
