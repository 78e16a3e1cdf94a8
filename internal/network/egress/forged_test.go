package egress

import (
	"errors"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/link"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/names"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// The next worker refuses a list with a repeated name, and then serves no sandbox.
func TestAHostileWorkerCannotRepeatAName(t *testing.T) {
	p := newHostileParent(t)
	var says []byte
	for _, name := range []string{"a.example", "b.example", "a.example", "c.example"} {
		says = append(says, frame(link.Report{Kind: link.KindName, Number: 1, Name: name}.Bytes())...)
	}
	feedParent(t, p, says)
	want := []string{"a.example", "b.example", "c.example"}
	r := p.keys["a"].record
	if !slices.Equal(r.names, want) {
		t.Errorf("the names are %q", r.names)
	}
	// A file with a repeated name counts up to the repetition.
	if err := appendTo(r.path(namesName), "b.example\nd.example\n", r.writtenSize); err != nil {
		t.Fatal(err)
	}
	again, err := openRecord(r.dir)
	if err != nil || !slices.Equal(again.names, want) {
		t.Fatalf("%q, %v", again.names, err)
	}
	if _, err := names.New(again.names, nil); err != nil {
		t.Error(err)
	}
}

// JSON can have control characters in its strings that its text does not have.
func TestAHostileWorkerCannotSendControlCharactersToATerminal(t *testing.T) {
	p := newHostileParent(t)
	const line = `{"name":"a\u001b[2J","address":"\u009b","rule":"\u202e","decision":"denied\n","reason":"is ä\r"}`
	feedParent(t, p, frame(link.Report{Kind: link.KindEvent, Number: 1, Line: line}.Bytes()))
	count := 0
	for e, err := range p.egress.Events(t.Context(), "a", false) {
		if err != nil {
			t.Fatal(err)
		}
		count++
		text := strings.Join([]string{e.Name, e.Address, e.Rule, e.Decision, e.Reason}, " ")
		if want := "a\ufffd[2J \ufffd \ufffd denied\ufffd is ä\ufffd"; text != want {
			t.Errorf("the event has %q; want %q", text, want)
		}
	}
	if count != 1 {
		t.Errorf("%d events", count)
	}
}

// The embedder can be the user of a listening launcher. Its descriptors must not stay open in the parent, and their
// closes must not wait.
func TestADeciderThatSendsDescriptorsIsEnded(t *testing.T) {
	testhost.Concurrent(t)
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection would close them
	p := newHostileParent(t)
	conn, theirs, err := descriptor.UnixPair()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	channel, err := channel.OfConn(conn, link.MaxSockets)
	if err != nil {
		t.Fatal(err)
	}
	d, err := p.addDecider(channel, "a")
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	reply := frame([]byte(`{"number":0}`))
	reply[0] = 102 // descriptors
	socket := testhost.LingeringSocket(t)
	sent := append([]int{int(w.Fd())}, testhost.OpenNull(t, 100)...)
	if _, err := descriptor.Send(int(theirs.Fd()), reply, append(sent, socket)...); err != nil {
		t.Fatal(err)
	}
	w.Close()
	unix.Close(socket)
	served := make(chan struct{})
	go func() {
		defer close(served)
		p.serveDecider(d)
	}()
	select {
	case <-served:
	case <-time.After(patience):
		t.Error("the decider goes on")
		d.end()
		<-served
	}
	_ = r.SetReadDeadline(time.Now().Add(patience))
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the descriptor is open: %v", err)
	}
}
