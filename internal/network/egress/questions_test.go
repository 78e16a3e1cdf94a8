package egress

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/link"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

func TestOpenQuestionsAreBounded(t *testing.T) {
	newOutside(t)
	e, s, other := newEgress(t), newSandbox(t), newSandbox(t)
	for key, s := range map[string]sandbox{"box": s, "other": other} {
		if err := e.Admit(t.Context(), Box{Key: key, Ask: true}, s.sockets); err != nil {
			t.Fatal(err)
		}
	}
	questions, _ := decide(t, e, "box")
	others, _ := decide(t, e, "other")
	var all []chan error
	var open []heldQuestion
	for range link.MaxQuestions {
		all = append(all, s.fetchLater("other.example"))
		open = append(open, next(t, questions))
	}
	if err := s.fetch("other.example"); err == nil || !strings.Contains(err.Error(), "has 64 open questions") {
		t.Errorf("one more: %v", err)
	}
	done := other.fetchLater("other.example")
	next(t, others).answer <- true
	if err := awaitEnd(t, done); err != nil {
		t.Errorf("another sandbox: %v", err)
	}
	for i, q := range open {
		q.answer <- i%2 == 0
	}
	allowed := 0
	for _, done := range all {
		if awaitEnd(t, done) == nil {
			allowed++
		}
	}
	if allowed != link.MaxQuestions/2 {
		t.Errorf("%d are allowed", allowed)
	}
	done = s.fetchLater("other.example")
	next(t, questions).answer <- true
	if err := awaitEnd(t, done); err != nil {
		t.Errorf("after the others: %v", err)
	}
}

// A call can go on after the end of its question.
func TestCallsOfADeciderAreBounded(t *testing.T) {
	testhost.Concurrent(t)
	newOutside(t)
	e, s := newEgress(t), newSandbox(t)
	e.answerTime = 50 * time.Millisecond
	if err := e.Admit(t.Context(), Box{Key: "box", Ask: true}, s.sockets); err != nil {
		t.Fatal(err)
	}
	d, err := e.Decider(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	var calls atomic.Int32
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	stuck := make(chan struct{})
	go func() {
		defer close(done)
		_ = d.Decide(ctx, func(context.Context, protocol.NetworkQuestion) bool { // the end of the test ends it
			calls.Add(1)
			<-stuck
			return true
		})
	}()
	defer func() { cancel(); close(stuck); <-done }()
	for range link.MaxQuestions {
		if err := s.fetch("other.example"); err == nil || !strings.Contains(err.Error(), "did not answer") {
			t.Fatalf("without an answer: %v", err)
		}
	}
	eventually(t, "one more is denied", func() bool { // on a busy machine the answer can come too late
		err := s.fetch("other.example")
		return err != nil && strings.Contains(err.Error(), "denied")
	})
	if n := calls.Load(); n != link.MaxQuestions {
		t.Errorf("%d calls", n)
	}
}
