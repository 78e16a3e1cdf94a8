package egress

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
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
	slow := take(t, got)
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
	if err := ended(t, waiting); err == nil {
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
	eventually(t, "another decider", func() bool {
		d, err := e.Decider(t.Context(), "box")
		if err == nil {
			d.Close()
		}
		return err == nil
	})
}
