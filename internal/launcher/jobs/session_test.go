package jobs

import "testing"

// A timer that fires at the moment of a Drop finds the session in use, and starts no timer again.
func TestIdleTimerThatFiresDuringADrop(t *testing.T) {
	v := &Session{all: &Sessions{}, Busy: 1}
	v.Drop()
	if v.idle != nil || v.Busy != 1 {
		t.Error("a dropped session has a timer")
	}
}
