package egress

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/link"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
)

// A grant without Ask ends the decider, its open questions, and the connections that it has allowed.
func TestAGrantWithoutAskEndsTheDecider(t *testing.T) {
	newOutside(t)
	e, s := newEgress(t), newSandbox(t)
	box := Box{Key: "box", Ask: true}
	if err := e.Admit(t.Context(), box, s.sockets); err != nil {
		t.Fatal(err)
	}
	questions, _ := decide(t, e, "box")
	got := s.slowly(t, "good.example")
	next(t, questions).answer <- true
	slow := awaitConn(t, got)
	waiting := s.fetchLater("other.example")
	open := next(t, questions)
	box.Ask, box.Allow = false, []string{"also.example"}
	if err := e.Change(t.Context(), box); err != nil {
		t.Fatal(err)
	}
	if err := readNow(t, slow); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("a connection that the embedder has allowed: %v", err)
	}
	open.answer <- true
	if err := awaitEnd(t, waiting); err == nil {
		t.Error("an answer to an earlier question counts")
	}
	if err := s.fetch("other.example"); !errors.Is(err, errNoName) {
		t.Errorf("a name without a rule: %v", err)
	}
	if d, err := e.Decider(t.Context(), "box"); err == nil || !strings.Contains(err.Error(), "asks for no decisions") {
		t.Errorf("a decider: %v, %v", d, err)
	}
	if err := s.fetch("also.example"); err != nil {
		t.Error(err)
	}
	// The next grant with Ask can have another decider.
	box.Ask = true
	if err := e.Change(t.Context(), box); err != nil {
		t.Fatal(err)
	}
	d, err := e.Decider(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
}

// The end of a decider is in force when Decide returns.
func TestDecidersFollowOneAnother(t *testing.T) {
	newOutside(t)
	e, s := newEgress(t), newSandbox(t)
	if err := e.Admit(t.Context(), Box{Key: "box", Ask: true}, s.sockets); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		d, err := e.Decider(t.Context(), "box")
		if err != nil {
			t.Fatalf("decider %d: %v", i, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := d.Decide(ctx, func(context.Context, protocol.NetworkQuestion) bool { return true }); !errors.Is(err, context.Canceled) {
			t.Fatalf("decider %d: %v", i, err)
		}
	}
	// The ends of the earlier ones do not end the last one.
	questions, _ := decide(t, e, "box")
	for range 20 {
		done := s.fetchLater("other.example")
		next(t, questions).answer <- true
		if err := awaitEnd(t, done); err != nil {
			t.Fatal(err)
		}
	}
}

// The rules of a sandbox and its names go to the worker in one order. JSON can write one byte of a reason as six. An
// order that is too long would end each worker, for all sandboxes.
func TestRulesThatNoOrderHoldsAreRefused(t *testing.T) {
	newOutside(t)
	e, other, hog := newEgress(t), newSandbox(t), newSandbox(t)
	if err := e.Admit(t.Context(), Box{Key: "other", Allow: []string{"good.example"}}, other.sockets); err != nil {
		t.Fatal(err)
	}
	const count = 610 // rules, of 15 MB in JSON
	rules := make([]string, count)
	for i := range rules {
		rules[i] = fmt.Sprintf("%d.example ; %s", i, strings.Repeat("<", 4060))
	}
	writeNames(t, e, "hog")
	err := e.Admit(t.Context(), Box{Key: "hog", Deny: rules}, hog.sockets)
	if err == nil || !strings.Contains(err.Error(), "the most are") {
		t.Errorf("rules: %v", err)
	}
	if err := other.fetch("good.example"); err != nil {
		t.Errorf("another sandbox: %v", err)
	}
}

// writeNames gives a sandbox that is not there yet as many and as long names as it can have.
func writeNames(t *testing.T, e Egress, key string) {
	t.Helper()
	r, err := openRecord(e.boxDir(key))
	if err != nil {
		t.Fatal(err)
	}
	for i := range link.MaxNames {
		r.keep(fmt.Sprintf("%0*d.example", link.MaxName-len(".example"), i))
	}
	if err := os.WriteFile(r.path(namesName), []byte(strings.Join(r.names, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}
