package jobs

import (
	"os"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// The next launcher holds the timeouts of the commands that run.
func TestDeadlinesAreResumed(t *testing.T) {
	v := newTestSession(t)
	started := func(r execRecord, ago time.Duration) execRecord {
		boot, err := process.SinceBoot()
		if err != nil {
			t.Fatal(err)
		}
		r.Boot = boot - ago
		return r
	}
	timeout := execRecord{Version: execVersion, Timeout: time.Hour}
	keep(t, v, execNumbered(1), started(timeout, 0))
	keep(t, v, execNumbered(2), started(execRecord{Version: execVersion}, 0))
	keep(t, v, execNumbered(3), started(timeout, 2*time.Hour)) // its time is over, and nothing of it runs
	newer := timeout
	newer.Version++
	keep(t, v, execNumbered(4), started(newer, 0))
	cut := keep(t, v, execNumbered(5), timeout)
	if err := os.Truncate(cut.path(ExecRecordName), 3); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := v.resumeDeadlines(); err != nil {
			t.Fatal(err)
		}
	}
	testhost.Eventually(t, "one timer is left", func() bool {
		v.all.Deadlines.Mu.Lock()
		defer v.all.Deadlines.Mu.Unlock()
		return len(v.all.Deadlines.All) == 1 && v.all.Deadlines.All[v.deadlineKey(execNumbered(1))] != nil
	})
	if again, more := v.expire(execNumbered(1), time.Now().Add(time.Minute)); !more || again > time.Minute || again < time.Second {
		t.Errorf("before its time: look again after %v, %t", again, more)
	}
	if err := os.RemoveAll(v.Path()); err != nil {
		t.Fatal(err)
	}
	if _, more := v.expire(execNumbered(1), time.Now().Add(time.Minute)); more {
		t.Error("a timer outlives its sandbox")
	}
	v.all.Forget("box")
	checkTimers(t, v, 0)
}
