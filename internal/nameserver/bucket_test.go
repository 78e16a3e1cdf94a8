package nameserver

import (
	"testing"
	"time"
)

// A bucket is full after a pause, and never fuller.
func TestARateHasABurst(t *testing.T) {
	r, now := NewBucket(200, 500), time.Now()
	for _, step := range []struct {
		pause time.Duration
		want  int
	}{{0, 500}, {0, 0}, {10 * time.Millisecond, 2}, {time.Second, 200}, {time.Hour, 500}} {
		now = now.Add(step.pause)
		n := 0
		for r.Take(now) {
			n++
		}
		if n != step.want {
			t.Errorf("after %v: %d, want %d", step.pause, n, step.want)
		}
	}
}
