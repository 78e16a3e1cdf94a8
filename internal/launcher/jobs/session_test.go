package jobs

import (
	"testing"
	"time"
)

// A timer that fires at the moment of a Drop finds no timer to start again.
func TestIdleTimerThatFiresDuringADrop(t *testing.T) {
	v := &Session{}
	v.last = time.Now()
	v.idleTimeIsOver()
	if v.idle != nil {
		t.Error("a dropped session has a timer")
	}
}
