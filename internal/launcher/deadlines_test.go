package launcher

import (
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// session opens a sandbox anew and gives it up, as a program does that looks at it.
func session(t *testing.T, l *Launcher, id string) weak.Pointer[live] {
	t.Helper()
	sb, err := l.Open(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	v := sb.live
	sb.Release()
	v.drop()
	return weak.Make(v)
}

func TestSessionsLeaveNoTimersOfDetachedExecs(t *testing.T) {
	l := newTestLauncher(t)
	sb := up(t, l, "", spec.Config{})
	p := detachedStart(t, sb, launch.Command{Args: []string{"sleep", "1000"}, Timeout: spec.Duration(time.Hour)})
	again := elsewhere(t, sb)
	other := again.live.launcher
	again.Release()
	again.live.drop()
	var all []weak.Pointer[live]
	for range 5 {
		all = append(all, session(t, other, sb.ID()))
	}
	eventually(t, "the sessions are gone from memory", func() bool {
		runtime.GC()
		for _, v := range all {
			if v.Value() != nil {
				return false
			}
		}
		return true
	})
	if n := len(other.deadlines.all); n != 1 {
		t.Errorf("%d timers of one exec", n)
	}
	if err := p.Signal(9, true); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(l.deadlines.all); n != 0 {
		t.Errorf("%d timers after the exec", n)
	}
	detachedStart(t, sb, launch.Command{Args: []string{"sleep", "1000"}, Timeout: spec.Duration(time.Hour)})
	if n := len(l.deadlines.all); n != 1 {
		t.Errorf("%d timers of the second exec", n)
	}
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	if n := len(l.deadlines.all); n != 0 {
		t.Errorf("%d timers after the sandbox", n)
	}
	other.Close()
	if n := len(other.deadlines.all); n != 0 {
		t.Errorf("%d timers after Close", n)
	}
}

func TestDeadlineIsTriedAgain(t *testing.T) {
	var d deadlines
	calls := make(chan time.Time, 10)
	d.arm(deadlineKey{id: "box"}, 0, func() (time.Duration, bool) {
		calls <- time.Now()
		return time.Millisecond, len(calls) < 3
	})
	eventually(t, "it is called until it is done", func() bool { return len(calls) == 3 })
	eventually(t, "its timer is gone", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.all) == 0
	})
	d.close()
	d.arm(deadlineKey{id: "box"}, 0, func() (time.Duration, bool) { calls <- time.Now(); return 0, false })
	if len(d.all) != 0 || len(calls) != 3 {
		t.Error("it is armed after Close")
	}
}
