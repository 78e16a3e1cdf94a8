package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/link"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A heldQuestion waits for the answer of the test.
type heldQuestion struct {
	protocol.NetworkQuestion
	ctx    context.Context
	answer chan bool
}

// decide makes the test the decider of a sandbox. The end function ends the decider, and returns the error of
// Decide.
func decide(t *testing.T, e Egress, key string) (questions chan heldQuestion, end func() error) {
	t.Helper()
	d, err := e.Decider(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	questions, ended := make(chan heldQuestion, 2*link.MaxQuestions), make(chan error, 1)
	go func() {
		ended <- d.Decide(ctx, func(ctx context.Context, q protocol.NetworkQuestion) bool {
			h := heldQuestion{q, ctx, make(chan bool, 1)}
			questions <- h
			select {
			case allowed := <-h.answer:
				return allowed
			case <-ctx.Done():
				return true // too late
			}
		})
	}()
	end = func() error {
		cancel()
		select {
		case err := <-ended:
			ended <- err
			return err
		case <-time.After(patience):
			t.Error("Decide does not return")
			return nil
		}
	}
	t.Cleanup(func() { _ = end() })
	return questions, end
}

func next(t *testing.T, questions chan heldQuestion) heldQuestion {
	t.Helper()
	select {
	case q := <-questions:
		return q
	case <-time.After(patience):
		t.Fatal("no question")
		return heldQuestion{}
	}
}

// fetchLater fetches in the background.
func (s sandbox) fetchLater(name string) chan error {
	done := make(chan error, 1)
	go func() { done <- s.fetch(name) }()
	return done
}

func awaitEnd(t *testing.T, done chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		t.Fatal("the request has no end")
		return nil
	}
}

func lastEvent(t *testing.T, e Egress) (last Event) {
	t.Helper()
	for event, err := range e.Events(t.Context(), "box", false) {
		if err != nil {
			t.Fatal(err)
		}
		last = event
	}
	return last
}

func TestAnEmbedderDecides(t *testing.T) {
	o, e, s := newOutside(t), newEgress(t), newSandbox(t)
	box := Box{Key: "box", Ask: true, Allow: []string{"good.example"}, Deny: []string{"bad.example"}}
	if err := e.Admit(t.Context(), box, s.sockets); err != nil {
		t.Fatal(err)
	}
	if err := s.fetch("other.example"); !errors.Is(err, errNoName) {
		t.Errorf("without a decider: %v", err)
	}
	questions, end := decide(t, e, "box")
	if _, err := e.Decider(t.Context(), "box"); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("a second decider: %v", err)
	}
	// Rules decide without the embedder.
	if err := s.fetch("good.example"); err != nil {
		t.Error(err)
	}
	if err := s.fetch("bad.example"); !errors.Is(err, errNoName) {
		t.Errorf("the denied name: %v", err)
	}
	if a, err := s.lookUp("10.0.0.1"); !errors.Is(err, errNoName) {
		t.Errorf("a name that is an address: %v, %v", a, err)
	}
	if len(questions) > 0 {
		t.Errorf("a question: %+v", next(t, questions).NetworkQuestion)
	}
	request := protocol.NetworkQuestion{Name: "other.example", Port: 80, Method: "GET", Path: "/"}
	for _, allowed := range []bool{true, false, true} { // an answer is for one request
		done := s.fetchLater("other.example")
		q := next(t, questions)
		if q.NetworkQuestion != request {
			t.Errorf("the question is %+v; want %+v", q.NetworkQuestion, request)
		}
		select {
		case err := <-done:
			t.Fatalf("the request does not wait: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
		q.answer <- allowed
		err := awaitEnd(t, done)
		if allowed && err != nil || !allowed && (err == nil || !strings.Contains(err.Error(), "the embedder denied other.example:80")) {
			t.Errorf("the answer is %v: %v", allowed, err)
		}
	}
	wantEvents(t, e, "box", "other.example denied", "bad.example denied", "good.example allowed", "10.0.0.1 denied",
		"other.example allowed", "other.example denied", "other.example allowed")
	eventually(t, "the event", func() bool { return lastEvent(t, e).Rule == link.AllowedByEmbedder })
	if counts, err := e.Counts(t.Context(), "box"); err != nil || counts.Requests != 3 {
		t.Errorf("%+v, %v", counts, err)
	}
	if err := end(); !errors.Is(err, context.Canceled) {
		t.Errorf("Decide: %v", err)
	}
	eventually(t, "the end of the decider", func() bool { return errors.Is(s.fetch("other.example"), errNoName) })
	for _, arrived := range o.arrivals() {
		if !strings.HasPrefix(arrived, "good.example ") && !strings.HasPrefix(arrived, "other.example ") {
			t.Errorf("outside: %s", arrived)
		}
	}
}

// A connection of another protocol, a silent one and a tunnel are questions without method and path. The
// answer covers the requests inside.
func TestAnEmbedderDecidesAboutConnections(t *testing.T) {
	newOutside(t)
	e, s := newEgress(t), newSandbox(t)
	if err := e.Admit(t.Context(), Box{Key: "box", Ask: true}, s.sockets); err != nil {
		t.Fatal(err)
	}
	questions, _ := decide(t, e, "box")
	a, err := s.lookUp("other.example")
	if err != nil {
		t.Fatal(err)
	}
	const request = "GET / HTTP/1.1\r\nHost: other.example\r\nConnection: close\r\n\r\n"
	for name, x := range map[string]struct{ address, first, second, want string }{
		"another protocol": {a.String() + ":80", "\x00\r\n\r\n", "", "HTTP/1.1 400"},
		"a silent client":  {a.String() + ":80", "", request, "HTTP/1.1 200"},
		"a tunnel":         {spec.ProxyServer, "CONNECT other.example:80 HTTP/1.1\r\n\r\n", request, "HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200"},
	} {
		for _, allowed := range []bool{true, false} {
			c, err := s.dial("tcp", x.address)
			if err != nil {
				t.Fatal(err)
			}
			_ = c.SetDeadline(time.Now().Add(patience))
			_, _ = io.WriteString(c, x.first)
			q := next(t, questions)
			if want := (protocol.NetworkQuestion{Name: "other.example", Port: 80}); q.NetworkQuestion != want {
				t.Errorf("%s: the question is %+v; want %+v", name, q.NetworkQuestion, want)
			}
			q.answer <- allowed
			if allowed {
				_, _ = io.WriteString(c, x.second)
			}
			b, err := io.ReadAll(c)
			if allowed && !strings.HasPrefix(string(b), x.want) || !allowed && strings.Contains(string(b), " 200") {
				t.Errorf("%s, answer %v: %q, %v", name, allowed, b, err)
			}
			c.Close()
		}
	}
	if len(questions) > 0 {
		t.Errorf("another question: %+v", next(t, questions).NetworkQuestion)
	}
	// TLS for another name is no question.
	c, err := s.dial("tcp", a.String()+":80")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, clientHello(t, "evil.example"))
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := io.ReadAll(c); !errors.Is(err, unix.ECONNRESET) || len(questions) > 0 {
		t.Errorf("TLS for another name: %v, %d questions", err, len(questions))
	}
}

// The rules count after the answer, too.
func TestRulesChangeWhileAnEmbedderDecides(t *testing.T) {
	testhost.Concurrent(t)
	newOutside(t)
	e, s := newEgress(t), newSandbox(t)
	box := Box{Key: "box", Ask: true}
	if err := e.Admit(t.Context(), box, s.sockets); err != nil {
		t.Fatal(err)
	}
	questions, _ := decide(t, e, "box")
	done := s.fetchLater("other.example")
	q := next(t, questions)
	box.Deny = []string{"other.example"}
	if err := e.Change(t.Context(), box); err != nil {
		t.Fatal(err)
	}
	q.answer <- true
	if err := awaitEnd(t, done); err == nil || !strings.Contains(err.Error(), "--deny other.example") {
		t.Errorf("denied meanwhile: %v", err)
	}
	// A deny rule ends a connection that the embedder has allowed. Other rules do not.
	a, err := s.lookUp("good.example")
	if err != nil {
		t.Fatal(err)
	}
	type result struct {
		c   net.Conn
		err error
	}
	got := make(chan result, 1)
	go func() {
		c, _, err := s.get(a, "good.example", "/slow")
		got <- result{c, err}
	}()
	next(t, questions).answer <- true
	slow := <-got
	if slow.err != nil {
		t.Fatal(slow.err)
	}
	defer slow.c.Close()
	box.Allow = []string{"also.example"}
	if err := e.Change(t.Context(), box); err != nil {
		t.Fatal(err)
	}
	_ = slow.c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if _, err := slow.c.Read(make([]byte, 9)); errors.Is(err, unix.ECONNRESET) {
		t.Error("a rule for another name has ended the connection")
	}
	box.Deny = append(box.Deny, "good.example")
	if err := e.Change(t.Context(), box); err != nil {
		t.Fatal(err)
	}
	_ = slow.c.SetReadDeadline(time.Now().Add(patience))
	if _, err := slow.c.Read(make([]byte, 9)); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the connection goes on: %v", err)
	}
}

func TestTheEndOfAskIsTold(t *testing.T) {
	newOutside(t)
	e, s := newEgress(t), newSandbox(t)
	if err := e.Admit(t.Context(), Box{Key: "box", Ask: true}, s.sockets); err != nil {
		t.Fatal(err)
	}
	d, err := e.Decider(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Change(t.Context(), Box{Key: "box"}); err != nil {
		t.Fatal(err)
	}
	if err := d.Decide(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "its network was set without Ask") {
		t.Error(err)
	}
}

// Without an answer in time, and without the decider, a connection is refused.
func TestAQuestionEndsWithoutAnAnswer(t *testing.T) {
	o, e, s := newOutside(t), newEgress(t), newSandbox(t)
	e.answerTime = 300 * time.Millisecond
	if err := e.Admit(t.Context(), Box{Key: "box", Ask: true}, s.sockets); err != nil {
		t.Fatal(err)
	}
	questions, end := decide(t, e, "box")
	done := s.fetchLater("other.example")
	q := next(t, questions)
	if err := awaitEnd(t, done); err == nil || !strings.Contains(err.Error(), "within 300ms") {
		t.Errorf("no answer: %v", err)
	}
	select {
	case <-q.ctx.Done():
	case <-time.After(patience):
		t.Error("the call of the callback goes on")
	}
	var late error
	for range 20 { // on a busy machine an answer can come too late
		done := s.fetchLater("good.example")
		next(t, questions).answer <- true
		if late = awaitEnd(t, done); late == nil {
			break
		}
	}
	if late != nil {
		t.Errorf("the next question: %v", late)
	}
	if err := end(); err == nil {
		t.Error("Decide has no error")
	}
	if got := o.arrivals(); len(got) != 1 {
		t.Errorf("outside: %q", got)
	}
}

func TestTheDeciderGoesAway(t *testing.T) {
	o, e, s := newOutside(t), newEgress(t), newSandbox(t)
	if err := e.Admit(t.Context(), Box{Key: "box", Ask: true}, s.sockets); err != nil {
		t.Fatal(err)
	}
	questions, end := decide(t, e, "box")
	done := s.fetchLater("other.example")
	next(t, questions)
	if err := end(); !errors.Is(err, context.Canceled) {
		t.Errorf("Decide: %v", err)
	}
	if err := awaitEnd(t, done); err == nil || !strings.Contains(err.Error(), "has gone") {
		t.Errorf("without a decider: %v", err)
	}
	if got := o.arrivals(); len(got) != 0 {
		t.Errorf("outside: %q", got)
	}
	// There can be a next one at once. It ends with the sandbox.
	d, err := e.Decider(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Dismiss(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
	if err := d.Decide(t.Context(), func(context.Context, protocol.NetworkQuestion) bool { return true }); !errors.Is(err, ErrUnknown) {
		t.Errorf("Decide after the sandbox: %v", err)
	}
	if _, err := e.Decider(t.Context(), "box"); !errors.Is(err, ErrUnknown) {
		t.Errorf("a decider of no sandbox: %v", err)
	}
}

// A decider stays while its sandbox is suspended. A decider that goes away then changes nothing for the worker,
// which has forgotten the names.
func TestTheSandboxOfADeciderIsSuspended(t *testing.T) {
	newOutside(t)
	e, s := newEgress(t), newSandbox(t)
	box := Box{Key: "box", Ask: true, Allow: []string{"good.example"}}
	admit := func() {
		t.Helper()
		if err := e.Admit(t.Context(), box, s.sockets); err != nil {
			t.Fatal(err)
		}
	}
	suspend := func() {
		t.Helper()
		if err := e.Suspend(t.Context(), "box"); err != nil {
			t.Fatal(err)
		}
	}
	admit()
	questions, end := decide(t, e, "box")
	first, err := s.lookUp("other.example")
	if err != nil {
		t.Fatal(err)
	}
	suspend()
	if _, err := e.Decider(t.Context(), "box"); !errors.Is(err, ErrUnknown) {
		t.Errorf("a decider of a suspended sandbox: %v", err)
	}
	admit()
	done := s.fetchLater("other.example")
	next(t, questions).answer <- true
	if err := awaitEnd(t, done); err != nil {
		t.Error(err)
	}
	suspend()
	_ = end() // the test of Decide's error is another
	eventually(t, "another decider, and no more", func() bool {
		admit()
		d, err := e.Decider(t.Context(), "box")
		if err == nil {
			suspend()
			d.Close()
		}
		return err == nil
	})
	time.Sleep(50 * time.Millisecond) // the parent may see the end of the decider before the next order
	admit()
	if a, err := s.lookUp("good.example"); err != nil || a == first {
		t.Errorf("a new name has the address %v, %v; another one had it before", a, err)
	}
}

// Questions end with the worker. The decider stays.
func TestTheWorkerIsKilledWhileAnEmbedderDecides(t *testing.T) {
	o, e, s := newOutside(t), newEgress(t), newSandbox(t)
	if err := e.Admit(t.Context(), Box{Key: "box", Ask: true}, s.sockets); err != nil {
		t.Fatal(err)
	}
	questions, _ := decide(t, e, "box")
	for range 3 {
		done := s.fetchLater("other.example")
		q := next(t, questions)
		replaceWorker(t, e)
		if err := awaitEnd(t, done); err == nil {
			t.Error("the request has an answer")
		}
		select {
		case <-q.ctx.Done():
		case <-time.After(patience):
			t.Error("the call of the callback goes on")
		}
	}
	// The late answers are for nothing.
	done := s.fetchLater("good.example")
	q := next(t, questions)
	if q.Name != "good.example" {
		t.Errorf("the question is %+v", q.NetworkQuestion)
	}
	if got := o.arrivals(); len(got) != 0 {
		t.Errorf("outside: %q", got)
	}
	q.answer <- true
	if err := awaitEnd(t, done); err != nil {
		t.Error(err)
	}
}

func TestTheParentIsKilledWhileAnEmbedderDecides(t *testing.T) {
	testhost.Concurrent(t)
	newOutside(t)
	e, s := newEgress(t), newSandbox(t)
	if err := e.Admit(t.Context(), Box{Key: "box", Ask: true}, s.sockets); err != nil {
		t.Fatal(err)
	}
	d, err := e.Decider(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- d.Decide(t.Context(), func(context.Context, protocol.NetworkQuestion) bool { return true })
	}()
	kill(t, parents(t, e)[0])
	select {
	case err := <-ended:
		if !errors.Is(err, ErrUnknown) {
			t.Errorf("Decide: %v", err)
		}
	case <-time.After(patience):
		t.Error("Decide goes on")
	}
}

// Requests that cannot be shown to an embedder are refused.
func TestUnusualRequestsAreNoQuestions(t *testing.T) {
	testhost.Concurrent(t)
	newOutside(t)
	e, s := newEgress(t), newSandbox(t)
	if err := e.Admit(t.Context(), Box{Key: "box", Ask: true}, s.sockets); err != nil {
		t.Fatal(err)
	}
	questions, _ := decide(t, e, "box")
	a, err := s.lookUp("other.example")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/" + strings.Repeat("a", link.MaxPath), "/ä"} {
		if c, line, err := s.get(a, "other.example", path); err == nil || !strings.Contains(line, "cannot be asked") {
			t.Errorf("%.20q: %v, %q, %v", path, c, line, err)
		}
	}
	if len(questions) > 0 {
		t.Errorf("a question: %+v", next(t, questions).NetworkQuestion)
	}
	done := make(chan error, 1)
	go func() {
		_, _, err := s.get(a, "other.example", "/"+strings.Repeat("a", link.MaxPath-1)+"?"+strings.Repeat("q", 2000))
		done <- err
	}()
	q := next(t, questions)
	if len(q.Path) != link.MaxPath {
		t.Errorf("the path has %d bytes", len(q.Path))
	}
	q.answer <- true
	if err := awaitEnd(t, done); err != nil {
		t.Error(fmt.Errorf("the longest path: %w", err))
	}
}
