package egress

import (
	"errors"
	"io"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
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
