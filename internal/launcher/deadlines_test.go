package launcher

import (
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/jobs"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// session opens a sandbox anew and gives it up, as a program does that looks at it.
func session(t *testing.T, l *Launcher, id string) weak.Pointer[jobs.Session] {
	t.Helper()
	sb, err := l.Open(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	v := sb.session
	sb.Release()
	v.Drop()
	return weak.Make(v)
}

func TestSessionsLeaveNoTimersOfDetachedExecs(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	p := detachedStart(t, sb, spec.Command{Args: []string{"sleep", "1000"}, Timeout: spec.Duration(time.Hour)})
	again := elsewhere(t, sb)
	other := again.launcher
	again.Release()
	again.session.Drop()
	var all []weak.Pointer[jobs.Session]
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
	if n := len(other.sessions.Deadlines.All); n != 1 {
		t.Errorf("%d timers of one exec", n)
	}
	if err := p.Signal(9, true); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(l.sessions.Deadlines.All); n != 0 {
		t.Errorf("%d timers after the exec", n)
	}
	detachedStart(t, sb, spec.Command{Args: []string{"sleep", "1000"}, Timeout: spec.Duration(time.Hour)})
	if n := len(l.sessions.Deadlines.All); n != 1 {
		t.Errorf("%d timers of the second exec", n)
	}
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	if n := len(l.sessions.Deadlines.All); n != 0 {
		t.Errorf("%d timers after the sandbox", n)
	}
	other.Close()
	if n := len(other.sessions.Deadlines.All); n != 0 {
		t.Errorf("%d timers after Close", n)
	}
}
