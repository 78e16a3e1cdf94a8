package jobs

import (
	"sync"
	"time"
)

// runEvery calls check after each interval, until check returns false or the caller calls stop.
// stop waits for a call under way. After stop no call begins.
func runEvery(interval time.Duration, check func() bool) (stop func()) {
	var mu sync.Mutex // guards the variables below, and is held during a call
	var timer *time.Timer
	stopped := false
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(interval, func() {
		mu.Lock()
		defer mu.Unlock()
		if !stopped && check() {
			timer.Reset(interval)
		}
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		stopped = true
		timer.Stop()
	}
}
