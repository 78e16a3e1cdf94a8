package server

import (
	"sync/atomic"
	"testing"
)

// Connections whose ends last fill the places and the list of one user, and of nobody else.
func TestRefusalsWaitInBounds(t *testing.T) {
	r := newRefusals()
	var ended atomic.Int32
	last := make(chan struct{})
	lasting := func() { <-last; ended.Add(1) }
	for i := range maxRefusalsPerUser + maxWaitingRefusalsPerUser {
		if !r.enter(7, lasting) {
			t.Fatalf("connection %d has no place", i)
		}
	}
	if r.enter(7, lasting) {
		t.Error("one more has a place")
	}
	other := make(chan struct{})
	if !r.enter(8, func() { close(other) }) {
		t.Error("another user has no place")
	} else {
		<-other
	}
	// Users that have taken all places: others wait, and have their turn.
	taken := int32(maxRefusalsPerUser + maxWaitingRefusalsPerUser)
	for uid := range uint32(2 * maxRefusals / maxRefusalsPerUser) {
		for range maxRefusalsPerUser {
			if !r.enter(100+uid, lasting) {
				t.Fatalf("user %d has no place", 100+uid)
			}
			taken++
		}
	}
	r.mu.Lock()
	if r.count != maxRefusals {
		t.Errorf("%d are closed at a time", r.count)
	}
	r.mu.Unlock()
	close(last)
	r.end()
	if n := ended.Load(); n != taken || r.count != 0 || r.waiting != 0 || len(r.users) != 0 {
		t.Errorf("%d of %d have ended; left: %d closed, %d waiting, %d users", n, taken, r.count, r.waiting, len(r.users))
	}
	if r.enter(7, lasting) {
		t.Error("a place after the end")
	}
}
