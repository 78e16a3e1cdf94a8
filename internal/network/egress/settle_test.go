package egress

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// When a client has the error of its refusal, or the end of its answer, the counts and events have it. A refusal
// that comes again is a new one.
func TestCountsHaveAllThatHasEnded(t *testing.T) {
	newOutside(t)
	e, s := newEgress(t), newSandbox(t)
	if err := e.Admit(t.Context(), Box{Key: "box", Allow: []string{"good.example"}}, s.sockets); err != nil {
		t.Fatal(err)
	}
	good, err := s.lookUp("good.example")
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(30) {
		c, err := s.dial("tcp", netip.AddrPortFrom(netip.MustParseAddr("93.184.216.35"), 80).String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
			t.Fatalf("a refused connection: %v", err)
		}
		c.Close()
		if _, err := s.lookUp("bad.example"); !errors.Is(err, errNoName) { // the same name each time
			t.Fatalf("a refused name: %v", err)
		}
		if counts, err := e.Counts(t.Context(), "box"); err != nil || counts.Refused != 2*(i+1) {
			t.Fatalf("after %d refusals: %+v, %v", 2*(i+1), counts, err)
		}
		before, err := e.Counts(t.Context(), "box")
		if err != nil {
			t.Fatal(err)
		}
		open, _, err := s.get(good, "good.example", "/slow")
		if err != nil {
			t.Fatal(err)
		}
		counts, err := e.Counts(t.Context(), "box")
		if err != nil || counts.Received <= before.Received || counts.Sent <= before.Sent {
			t.Fatalf("with an open connection: %+v, %v; before: %+v", counts, err, before)
		}
		open.Close()
		answered, err := s.dial("tcp", netip.AddrPortFrom(good, 80).String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(answered, "GET / HTTP/1.1\r\nHost: good.example\r\nConnection: close\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answered)
		answered.Close()
		more, wrong := e.Counts(t.Context(), "box")
		if err != nil || wrong != nil || more.Received < counts.Received+uint64(len(text)) {
			t.Fatalf("after an answer of %d bytes: %+v, %v, %v; before: %+v", len(text), more, err, wrong, counts)
		}
	}
	denied := 0
	for event, err := range e.Events(t.Context(), "box", false) {
		if err != nil {
			t.Fatal(err)
		}
		if event.Decision == "denied" {
			denied++
		}
	}
	if denied != 60 {
		t.Errorf("there are %d events of 60 refusals", denied)
	}
}

// The worker waits for the ends of connections that have ended inside. One that waits for a decision does not end.
// Clients that ask for the counts of its sandbox at once must not delay the orders for others.
func TestCountsOfASandboxDelayNoOther(t *testing.T) {
	testhost.Concurrent(t)
	newOutside(t)
	e, s, other := newEgress(t), newSandbox(t), newSandbox(t)
	if err := e.Admit(t.Context(), Box{Key: "other", Allow: []string{"good.example"}}, other.sockets); err != nil {
		t.Fatal(err)
	}
	if err := e.Admit(t.Context(), Box{Key: "box", Ask: true}, s.sockets); err != nil {
		t.Fatal(err)
	}
	questions, _ := decide(t, e, "box")
	a, err := s.lookUp("other.example")
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.dial("tcp", netip.AddrPortFrom(a, 80).String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: other.example\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	next(t, questions)
	if err := errors.Join(c.(*net.TCPConn).SetLinger(0), c.Close()); err != nil { //nolint:forcetypeassert // of TCP
		t.Fatal(err)
	}
	open := awaitConn(t, other.slowly(t, "good.example"))
	var clients sync.WaitGroup
	for range 60 {
		clients.Go(func() {
			if _, err := e.Counts(t.Context(), "box"); err != nil {
				t.Error(err)
			}
		})
	}
	clients.Wait()
	if err := readNow(t, open); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("the connection of another sandbox: %v", err)
	}
}
