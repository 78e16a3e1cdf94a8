package relay

import (
	"errors"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

type signals []syscall.Signal

func (s *signals) Signal(sig syscall.Signal) error { *s = append(*s, sig); return nil }
func (s *signals) Kill() error                     { *s = append(*s, syscall.SIGKILL); return nil }
func (s *signals) Grace() time.Duration            { return time.Hour }
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
	if cancelled == nil || !slices.Equal(got, signals{syscall.SIGTERM, syscall.SIGKILL}) {
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
	if r.giveUp(&got, "late"); cancelled != nil || len(got) != 1 {
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
	var got signals
	r.starting()
	r.to(&got)
	if r.giveUp(&got, "late"); cancelled == nil || cancelled.Error() != "late" || !slices.Equal(got, signals{syscall.SIGKILL}) {
		t.Error(cancelled, got)
	}
}

// A program that hangs does not see the end of its context. A signal that is sent twice at once is one.
func TestAFurtherSignalEndsTheProgram(t *testing.T) {
	for name, begin := range map[string]func(*Signals){
		"before the command": func(r *Signals) { r.handle(syscall.SIGTERM) },
		"during the command": func(r *Signals) {
			r.starting()
			r.to(new(signals))
			r.handle(syscall.SIGTERM)
			r.handle(syscall.SIGTERM)
		},
	} {
		cancelled, restored := 0, 0
		var quit signals
		r := &Signals{cancel: func(error) { cancelled++ }, quit: func(s syscall.Signal) { quit = append(quit, s) }}
		r.restoring(func() { restored++ })
		begin(r)
		r.handle(syscall.SIGTERM)
		if cancelled != 1 || len(quit) > 0 {
			t.Errorf("%s: cancelled %d times, quit with %v", name, cancelled, quit)
		}
		r.given = r.given.Add(-insistTime)
		if r.handle(syscall.SIGINT); !slices.Equal(quit, signals{syscall.SIGINT}) || restored != 1 {
			t.Errorf("%s: quit with %v, restored %d times", name, quit, restored)
		}
	}
}

type hasty struct{ signals }

func (*hasty) Grace() time.Duration { return 0 }

func TestACommandWithoutAGraceIsKilledAfterASignal(t *testing.T) {
	cancelled := make(chan error, 1)
	r := &Signals{cancel: func(err error) { cancelled <- err }}
	r.starting()
	r.to(&hasty{})
	r.handle(syscall.SIGTERM)
	if got := (<-cancelled).Error(); got != "the command had no grace after SIGTERM" {
		t.Error(got)
	}
}
