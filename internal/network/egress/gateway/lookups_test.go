package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/nameserver"
)

// A nameServer answers each query with no record, and counts the queries.
type nameServer struct{ queries int }

func (s *nameServer) answer(_ context.Context, _ netip.AddrPort, query []byte) ([]byte, error) {
	s.queries++
	var m dnsmessage.Message
	if err := m.Unpack(query); err != nil {
		return nil, err
	}
	m.Response = true
	return m.Pack()
}

// lookUp sends the query of a box, with an id, and checks the id of the answer.
func lookUp(t *testing.T, r *net.Resolver, id uint16, name string) error {
	t.Helper()
	query, err := (&dnsmessage.Message{
		Header:    dnsmessage.Header{ID: id, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}},
	}).Pack()
	if err != nil {
		t.Fatal(err)
	}
	c, err := r.Dial(t.Context(), "udp", "192.0.2.1:53")
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Write(query); err != nil {
		return err
	}
	b := make([]byte, 512)
	n, err := c.Read(b)
	if err != nil {
		return err
	}
	var m dnsmessage.Message
	if err := m.Unpack(b[:n]); err != nil || m.ID != id || len(m.Questions) != 1 || m.Questions[0].Name.String() != name {
		t.Fatalf("the answer to %d %s: %+v, %v", id, name, m, err)
	}
	return nil
}

// A box that connects to name after name makes a bounded number of queries to the name servers.
func TestLookupsOfABoxAreBounded(t *testing.T) {
	s := &nameServer{}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, x := range []struct {
		network     string
		rate, burst int
	}{{"udp", nameserver.QueryRate, nameserver.QueryBurst}, {"tcp", nameserver.StreamRate, nameserver.StreamBurst}} {
		r, start, made := newResolver(s.answer), time.Now(), 0
		for i := range 4 * nameserver.QueryBurst {
			var err error
			if x.network == "tcp" {
				var c net.Conn
				if c, err = r.Dial(t.Context(), "tcp", l.Addr().String()); err == nil {
					c.Close()
				}
			} else {
				err = lookUp(t, r, uint16(i), fmt.Sprintf("n%d.example.", i))
			}
			if err == nil {
				made++
			} else if !errors.Is(err, nameserver.ErrTooMany) {
				t.Fatalf("%s: %v", x.network, err)
			}
		}
		if bound := x.burst + int(time.Since(start).Seconds()*float64(x.rate)) + 1; made < x.burst || made > bound {
			t.Errorf("%s: %d queries, want %d at most", x.network, made, bound)
		}
	}
}

// A client that connects to one name again and again is not above the bound.
func TestLookupsOfOneNameAreNotRefused(t *testing.T) {
	s := &nameServer{}
	r := newResolver(s.answer)
	for i := range 3 * nameserver.QueryBurst {
		if err := lookUp(t, r, uint16(i), "one.example."); err != nil {
			t.Fatalf("lookup %d after %d queries: %v", i, s.queries, err)
		}
	}
}
