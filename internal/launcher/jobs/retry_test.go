package jobs

import (
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

func TestDeadlineIsTriedAgain(t *testing.T) {
	d := deadlines{All: map[DeadlineKey]*deadline{}, closing: make(chan struct{})}
	calls := make(chan time.Time, 10)
	d.arm(DeadlineKey{ID: "box"}, 0, func() (time.Duration, bool) {
		calls <- time.Now()
		return time.Millisecond, len(calls) < 3
	})
	testhost.Eventually(t, "it is called until it is done", func() bool { return len(calls) == 3 })
	testhost.Eventually(t, "its timer is gone", func() bool {
		d.Mu.Lock()
		defer d.Mu.Unlock()
		return len(d.All) == 0
	})
	d.close()
	d.arm(DeadlineKey{ID: "box"}, 0, func() (time.Duration, bool) { calls <- time.Now(); return 0, false })
	if len(d.All) != 0 || len(calls) != 3 {
		t.Error("it is armed after Close")
	}
}
