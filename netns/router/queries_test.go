package router

import (
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

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

// isRefusal says that a packet or a connection was refused.
func isRefusal(err error) bool {
	return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EACCES)
}

// Each query above the bound is refused at once, over UDP and over TCP.
func TestASandboxHasABoundOfQueries(t *testing.T) {
	w := newWorld(t)
	nameServer(t, w.internet)
	greedy := w.attach(t, Member{Link: "s-greedy", Number: 1})
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
	bound := queryBurst + int(time.Since(start).Seconds()*queryRate) + 1
	if answered > bound || answered+refused != 2*tries {
		t.Errorf("%d were answered and %d refused, want at most %d answers", answered, refused, bound)
	}
	if answered < queryBurst {
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
