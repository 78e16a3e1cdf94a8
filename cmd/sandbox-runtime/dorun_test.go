package main

import (
	"errors"
	"slices"
	"syscall"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/agent"
)

type signals []syscall.Signal

func (s *signals) Signal(sig syscall.Signal) error { *s = append(*s, sig); return nil }
func (s *signals) Resize(agent.Winsize) error      { return errors.New("not asked for") }

// A command runs, and prints, before its start has returned: a signal by then is
// for the command, which may have a handler.
func TestSignalsWhileTheCommandStartsReachIt(t *testing.T) {
	var cancelled error
	r := &signalRelay{cancel: func(err error) { cancelled = err }}
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
	r := &signalRelay{cancel: func(err error) { cancelled = err }}
	r.handle(syscall.SIGHUP)
	if cancelled == nil || cancelled.Error() != "interrupted by SIGHUP" {
		t.Error(cancelled)
	}
}
