package jobs

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

func TestEveryMakesNoCallAfterStop(t *testing.T) {
	var calls atomic.Int32
	begun, goOn, stopped := make(chan struct{}), make(chan struct{}), make(chan struct{})
	stop := runEvery(time.Millisecond, func() bool {
		if calls.Add(1) == 1 {
			close(begun)
			<-goOn
		}
		return true
	})
	<-begun
	go func() {
		stop()
		close(stopped)
	}()
	time.Sleep(20 * time.Millisecond) // stop comes during the first call
	close(goOn)
	<-stopped
	before := calls.Load()
	time.Sleep(50 * time.Millisecond)
	if after := calls.Load(); after != before {
		t.Errorf("%d calls after stop", after-before)
	}
}

func TestEveryEndsWithItsCheck(t *testing.T) {
	var calls atomic.Int32
	defer runEvery(time.Millisecond, func() bool { return calls.Add(1) < 3 })()
	testhost.Eventually(t, "it is called three times", func() bool { return calls.Load() == 3 })
	time.Sleep(20 * time.Millisecond)
	if n := calls.Load(); n != 3 {
		t.Errorf("%d calls", n)
	}
}
