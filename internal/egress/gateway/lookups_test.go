package gateway

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/nameserver"
)

// A box that connects to name after name makes a bounded number of queries to the name servers.
func TestLookupsOfABoxAreBounded(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, x := range []struct {
		network     string
		rate, burst int
	}{{"udp", nameserver.QueryRate, nameserver.QueryBurst}, {"tcp", nameserver.StreamRate, nameserver.StreamBurst}} {
		r, start, made := newResolver(&nameserver.Pool{}), time.Now(), 0
		for range 4 * nameserver.QueryBurst {
			c, err := r.Dial(t.Context(), x.network, l.Addr().String())
			if err == nil {
				c.Close()
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
