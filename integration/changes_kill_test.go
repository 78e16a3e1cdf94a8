package integration

import (
	"math/rand/v2"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/failpoint"
)

// Killed at any moment, an apply is finished by the next one, which says no more than
// that it is done.
func TestApplyKilledAtFailpoints(t *testing.T) {
	s := newSandboxes(t)
	strike := func(home string, n int) failpoint.Trace {
		t.Helper()
		s.up("box", "--overlay", home)
		s.exec("box", "sh", "-euc", everyChange, home)
		trace, err := failpoint.Run(s.command("apply", "--yes", "box"), n, patience)
		if err != nil {
			t.Fatal(err)
		}
		return trace
	}
	points := len(strike(newHome(t), 0).Points)
	s.downIfUp("box")
	kills, changed := 0, 0
	for n := 1 + rand.N(10); n <= points; n += 10 { // others each time
		home := newHome(t)
		before := snapshotOf(t, home)
		trace := strike(home, n)
		if trace.Killed {
			kills++
		}
		if len(differing(before, snapshotOf(t, home))) > 0 {
			changed++
		}
		if got := run(t, s.command("apply", "--yes", "box")); got.code != 0 {
			t.Errorf("killed at %d, %v, and then: %+v", n, trace.Points[len(trace.Points)-1], got)
		}
		if got := differing(s.seen("box", home), snapshotOf(t, home)); len(got) > 0 {
			t.Errorf("killed at %d, the host is not what the sandbox saw at %q", n, got)
		}
		s.downIfUp("box")
	}
	if t.Logf("%d failpoints, %d kills", points, kills); kills == 0 || changed == 0 {
		t.Errorf("killed %d times, with the host half-way %d times", kills, changed)
	}
}
