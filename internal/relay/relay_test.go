package relay

import (
	"errors"
	"slices"
	"syscall"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

type signals []syscall.Signal

func (s *signals) Signal(sig syscall.Signal) error { *s = append(*s, sig); return nil }
func (s *signals) Resize(sandbox.Winsize) error    { return errors.New("not asked for") }

// A command runs, and prints, before its start has returned: a signal by then is
// for the command, which may have a handler.
func TestSignalsWhileTheCommandStartsReachIt(t *testing.T) {
	var cancelled error
	r := &Signals{cancel: func(err error) { cancelled = err }}
	r.starting()
	r.handle(syscall.SIGTERM)
	if cancelled != nil {
		t.Fatal(cancelled)
	}
	var got signals
	r.to(&got)
	if !slices.Equal(got, signals{syscall.SIGTERM}) {
		t.Errorf("got %v", got)
	}
	r.handle(syscall.SIGTERM) // the second time it is meant
	if cancelled == nil || len(got) != 1 {
		t.Errorf("%v, %v", cancelled, got)
	}
}

func TestSignalsBeforeTheCommandStartsEndAll(t *testing.T) {
	var cancelled error
	r := &Signals{cancel: func(err error) { cancelled = err }}
	r.handle(syscall.SIGHUP)
	if cancelled == nil || cancelled.Error() != "interrupted by SIGHUP" {
		t.Error(cancelled)
	}
}

// A ^C that has ended the command leaves the question what becomes of its changes,
// and one at the question ends it at once.
func TestSignalsAfterTheCommandEndAll(t *testing.T) {
	var cancelled error
	var got signals
	r := &Signals{cancel: func(err error) { cancelled = err }}
	r.starting()
	r.to(&got)
	r.handle(syscall.SIGINT)
	r.ended()
	if r.giveUp(syscall.SIGINT); cancelled != nil || len(got) != 1 {
		t.Errorf("after its end: %v, %v", cancelled, got)
	}
	if err := r.Page(func() error { r.handle(syscall.SIGINT); return cancelled }); err != nil {
		t.Errorf("in a pager: %v", err)
	}
	if r.handle(syscall.SIGINT); cancelled == nil || cancelled.Error() != "interrupted by SIGINT" || len(got) != 1 {
		t.Errorf("at the question: %v, %v", cancelled, got)
	}
}

func TestACommandThatDoesNotEndIsGivenUp(t *testing.T) {
	var cancelled error
	r := &Signals{cancel: func(err error) { cancelled = err }}
	r.starting()
	if r.giveUp(syscall.SIGTERM); cancelled == nil || cancelled.Error() != "the command did not end on SIGTERM" {
		t.Error(cancelled)
	}
}
