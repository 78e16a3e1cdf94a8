package gateway

import (
	"net/netip"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/link"
)

// newTestGateway is a gateway with one box, and the parent's end of its channel.
func newTestGateway(t *testing.T) (*gateway, *box, *channel.Conn) {
	t.Helper()
	conn, theirs, err := descriptor.UnixPair()
	if err != nil {
		t.Fatal(err)
	}
	parent, err := channel.OfConn(conn, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { parent.Close() })
	channel, err := fileChannel(theirs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { channel.Close() })
	g := newGateway(channel, sharesOf(1024))
	return g, admit(t, g), parent
}

// admit gives the gateway the box with the number 1.
func admit(t *testing.T, g *gateway) *box {
	t.Helper()
	if err := g.take(link.Order{Number: 1, Box: &link.Box{Key: "box", Ask: true}, Asks: true}, nil); err != nil {
		t.Fatal(err)
	}
	return g.boxes[1]
}

// A query can be answered while its box is dismissed. A name that comes after the acknowledgement could be one
// that the next box does not have at the same place.
func TestADismissedBoxRecordsNoName(t *testing.T) {
	g, b, _ := newTestGateway(t)
	if _, err := b.names.Of("a.example"); err != nil {
		t.Fatal(err)
	}
	g.dismiss(1)
	if pair, err := b.names.Of("b.example"); err == nil {
		t.Errorf("a dismissed box has recorded a name: %v", pair)
	}
}

// An answer to a question of a suspended box must not be one for the same box after its return.
func TestNumbersOfQuestionsAreNotUsedAgain(t *testing.T) {
	g, b, _ := newTestGateway(t)
	open := func(b *box) uint64 {
		b.mu.Lock()
		defer b.mu.Unlock()
		id, _, reason := b.openQuestionLocked(link.Question{Name: "a.example", Port: 443})
		if reason != "" {
			t.Fatal(reason)
		}
		return id
	}
	first := open(b)
	g.dismiss(1)
	if second := open(admit(t, g)); second == first {
		t.Errorf("both questions have the number %d", first)
	}
}

// The proxy refuses an address of the host that only a range allows. Such a connection is not one of the allowed
// requests.
func TestARefusedDestinationIsNotCounted(t *testing.T) {
	g, b, _ := newTestGateway(t)
	single, ranged := netip.MustParseAddr("192.0.2.5"), netip.MustParseAddr("198.51.100.5")
	g.host = &hostAddresses{read: time.Now().Add(time.Hour), all: []netip.Addr{single, ranged}}
	b.change(&link.Box{Key: "box", Allow: []string{"192.0.2.5", "198.51.100.0/24"}}, false)
	for _, test := range []struct {
		to    netip.Addr
		count uint64
	}{{ranged, 0}, {single, 1}, {netip.MustParseAddr("198.51.100.6"), 2}} {
		c := &connection{box: b}
		c.Destination(test.to, 80)
		if b.used.Requests != test.count {
			t.Errorf("%s: %d requests, not %d", test.to, b.used.Requests, test.count)
		}
	}
}
