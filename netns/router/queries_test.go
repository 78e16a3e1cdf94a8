package router

import (
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/nameserver"
	"github.com/sandbox-runtime/sandbox-runtime/netns"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// query is a query for the addresses of a name.
func query(t *testing.T, name string) []byte {
	t.Helper()
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}},
	}
	packed, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return packed
}

// attachReady attaches a sandbox, and waits until packets pass: the kernel drops the first ones while it activates the
// link. TCP repeats them.
func (w *world) attachReady(t *testing.T, m Member) *os.File {
	t.Helper()
	sandbox := w.attach(t, m)
	dial(t, sandbox, "tcp", spec.NameServer+":53").Close()
	return sandbox
}

// isRefusal says that a packet or a connection was refused.
func isRefusal(err error) bool {
	return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EACCES)
}

// Each query above the bound is refused at once, over UDP and over TCP.
func TestASandboxHasABoundOfQueries(t *testing.T) {
	w := newWorld(t)
	nameServer(t, w.internet)
	greedy := w.attachReady(t, Member{Link: "s-greedy", Number: 1})
	const tries = 2000
	asked, start := query(t, "some.example."), time.Now()
	c := dial(t, greedy, "udp", spec.NameServer+":53")
	if err := c.SetDeadline(start.Add(patience)); err != nil {
		t.Fatal(err)
	}
	answered, refused, answer := 0, 0, make([]byte, 512)
	for range tries {
		_, err := c.Write(asked)
		if err == nil {
			_, err = c.Read(answer)
		}
		switch {
		case err == nil:
			answered++
		case isRefusal(err):
			refused++
		default:
			t.Fatalf("%d were answered, %d refused, then: %v", answered, refused, err)
		}
	}
	for range tries {
		err := netns.Do(greedy, func() error {
			c, err := net.DialTimeout("tcp", spec.NameServer+":53", patience)
			if err == nil {
				c.Close()
			}
			return err
		})
		switch {
		case err == nil:
			answered++
		case isRefusal(err):
			refused++
		default:
			t.Fatalf("over TCP: %v", err)
		}
	}
	bound := nameserver.QueryBurst + int(time.Since(start).Seconds()*nameserver.QueryRate) + 1
	if answered > bound || answered+refused != 2*tries {
		t.Errorf("%d were answered and %d refused, want at most %d answers", answered, refused, bound)
	}
	if answered < nameserver.QueryBurst-1 { // attachReady has asked once
		t.Errorf("%d were answered, want at least the burst", answered)
	}
}

// flood sends packets as fast as it can from several sockets, until the test ends or stop is called.
func flood(t *testing.T, sandbox *os.File, packet []byte) (stop func()) {
	t.Helper()
	end := make(chan struct{})
	var senders sync.WaitGroup
	for range 4 {
		c := dial(t, sandbox, "udp", spec.NameServer+":53")
		senders.Go(func() {
			for {
				select {
				case <-end:
					return
				default:
					_, _ = c.Write(packet) // may report the refusal of an earlier packet
				}
			}
		})
	}
	stop = sync.OnceFunc(func() { close(end); senders.Wait() })
	t.Cleanup(stop)
	return stop
}

// While one sandbox floods the resolver, with queries that the name server answers or with others, its neighbour's
// lookups take about as long as before. A lost query costs five seconds (resolv.conf(5), timeout).
func TestAFloodOfQueriesReachesNoNeighbour(t *testing.T) {
	const lookups = 100
	for _, name := range []string{"some.example.", silentName} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			nameServer(t, w.internet)
			greedy, other := w.attach(t, Member{Link: "s-greedy", Number: 1}), w.attach(t, Member{Link: "s-other", Number: 2})
			flood(t, greedy, query(t, name))
			var times []time.Duration
			slow := 0
			for range lookups {
				start := time.Now()
				if got, err := lookup(other, "udp", "some.example"); err != nil || !slices.Equal(got, []string{"9.8.7.6"}) {
					t.Errorf("%q, %v", got, err)
				}
				took := time.Since(start)
				times = append(times, took)
				if took > 2*time.Second {
					slow++
				}
				if slow > lookups/10 {
					t.Fatalf("%d lookups took more than two seconds: %v", slow, times)
				}
			}
			slices.Sort(times)
			t.Logf("a lookup took %v, the slowest %v", times[lookups/2], times[lookups-1])
		})
	}
}

// askOnce sends a query to the resolver over a new connection, and returns the code of the answer.
func askOnce(t *testing.T, sandbox *os.File, network string, query []byte) dnsmessage.RCode {
	t.Helper()
	c := dial(t, sandbox, network, spec.NameServer+":53")
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	skipped := 0
	if network == "tcp" {
		query, skipped = append([]byte{0, byte(len(query))}, query...), 2
	}
	answer := make([]byte, 512)
	if _, err := c.Write(query); err != nil {
		t.Fatal(err)
	}
	n, err := c.Read(answer)
	var m dnsmessage.Message
	if err == nil {
		err = m.Unpack(answer[min(skipped, n):n])
	}
	if err != nil {
		t.Fatal(err)
	}
	return m.RCode
}

// lookups are the host's entries for connections of the resolver to the name server.
func (w *world) lookups(t *testing.T, protocol uint8) (count int) {
	t.Helper()
	err := w.doOnHost(func() error {
		flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		for _, f := range flows {
			if f.Forward.Protocol == protocol && f.Forward.SrcIP.String() == hostIPv4 && f.Forward.DstIP.String() == internetIPv4 && f.Forward.DstPort == 53 {
				count++
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return count
}

// The queries of sandboxes take few entries of the host's table of connections.
func TestQueriesTakeFewConnectionsOfTheHost(t *testing.T) {
	w := newWorld(t)
	nameServer(t, w.internet)
	one := w.attachReady(t, Member{Link: "s-one", Number: 1})
	start, some := time.Now(), query(t, "some.example.")
	const queries = 300
	for range queries {
		if code := askOnce(t, one, "udp", some); code != dnsmessage.RCodeSuccess {
			t.Fatalf("the answer of the name server: %v", code)
		}
	}
	answered := 0
	for range queries / 2 {
		if askOnce(t, one, "tcp", some) == dnsmessage.RCodeSuccess {
			answered++
		}
	}
	// A place for a port, and a new port each minute. For TCP the burst, and eight connections a second.
	seconds := int(time.Since(start).Seconds()) + 1
	udp, tcp := w.lookups(t, unix.IPPROTO_UDP), w.lookups(t, unix.IPPROTO_TCP)
	if bound := nameserver.Ports * (1 + (seconds+59)/60); udp == 0 || udp > bound {
		t.Errorf("%d entries of UDP, want %d at most", udp, bound)
	}
	if bound := 32 + 8*seconds; answered < 32 || tcp > bound || answered > bound {
		t.Errorf("%d answers over TCP and %d entries, want %d at most", answered, tcp, bound)
	}
}

// A packet that is longer than a query is refused at once. Long packets would fill the resolver's socket sooner.
func TestLongQueriesAreRefused(t *testing.T) {
	w := newWorld(t)
	nameServer(t, w.internet)
	one := w.attachReady(t, Member{Link: "s-one", Number: 1})
	some := query(t, "some.example.")
	for _, x := range []struct {
		length int
		isLong bool
	}{{len(some), false}, {maxQuery, false}, {maxQuery + 1, true}, {60000, true}} {
		c := dial(t, one, "udp", spec.NameServer+":53")
		if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		_, err := c.Write(append(some, make([]byte, x.length-len(some))...))
		if err == nil {
			_, err = c.Read(make([]byte, maxQuery))
		}
		if x.isLong && !isRefusal(err) || !x.isLong && err != nil {
			t.Errorf("%d bytes: %v", x.length, err)
		}
	}
}

// The kernel can take many queries of a sandbox as one packet (udp(7), UDP_SEGMENT). The packet filter counts one.
func TestAPacketOfManyQueriesIsFewQueries(t *testing.T) {
	w := newWorld(t)
	nameServer(t, w.internet)
	sandbox := w.attachReady(t, Member{Link: "s-greedy", Number: 1})
	zone := func(id uint16) []byte { // refused at once, in the order of the packets
		q := dnsmessage.Question{Name: dnsmessage.MustNewName("a."), Type: dnsmessage.TypeAXFR, Class: dnsmessage.ClassINET}
		m := dnsmessage.Message{Header: dnsmessage.Header{ID: id}, Questions: []dnsmessage.Question{q}}
		packed, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		return packed
	}
	many := dial(t, sandbox, "udp", spec.NameServer+":53").(*net.UDPConn)
	const queries, last = 40, 7
	one := zone(1)
	sendAsOne(t, many, slices.Repeat(one, queries), len(one))
	if _, err := many.Write(zone(last)); err != nil {
		t.Fatal(err)
	}
	if err := many.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	for answer, n := make([]byte, 512), 0; ; n++ {
		if _, err := many.Read(answer); err != nil {
			t.Fatal(err)
		}
		if answer[1] == last {
			if n == 0 || n > 4 {
				t.Errorf("%d queries of one packet were answered, want 1 to 4", n)
			}
			return
		}
	}
}

// Packets that come before the resolver has started wait whole, too. The resolver of a router starts again beside sandboxes.
func TestAPacketOfManyQueriesWaitsWhole(t *testing.T) {
	w := newWorld(t)
	var loopback end
	inner, err := handleAt(w.internet)
	if err == nil {
		defer inner.Close()
		loopback, err = openEnd(inner, "lo")
	}
	if err == nil {
		err = loopback.addAddress(resolverAddress.Addr())
	}
	if err != nil {
		t.Fatal(err)
	}
	packets, streams, err := listenInside(w.internet)
	if err != nil {
		t.Fatal(err)
	}
	defer packets.Close()
	defer streams.Close()
	one := query(t, "some.example.")
	const queries = 20
	sendAsOne(t, dial(t, w.internet, "udp", resolverAddress.String()).(*net.UDPConn), slices.Repeat(one, queries), len(one))
	buffer := make([]byte, maxQuery)
	if n, err := unix.Read(int(packets.Fd()), buffer); err != nil || n != queries*len(one) {
		t.Errorf("a packet of %d bytes, want %d: %v", n, queries*len(one), err)
	}
}

// sendAsOne has the kernel take datagrams of one length as one packet.
func sendAsOne(t *testing.T, c *net.UDPConn, all []byte, length int) {
	t.Helper()
	err := descriptor.Use(c, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_SEGMENT, length) })
	if err == nil {
		_, err = c.Write(all)
	}
	if err != nil {
		t.Fatal(err)
	}
}
