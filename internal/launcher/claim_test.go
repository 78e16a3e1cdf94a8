package launcher

import (
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// newPooledLauncher is a launcher whose pool has blanks for sandboxes of its tests: in memory, for
// root.
func newPooledLauncher(t *testing.T, c spec.PoolConfig) *Launcher {
	t.Helper()
	l := newTestLauncher(t)
	if err := l.StartPool(c, "", ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.StopPool)
	awaitBlanks(t, l, c.WarmUp)
	return l
}

func awaitBlanks(t *testing.T, l *Launcher, n int) {
	t.Helper()
	testhost.Eventually(t, "blanks", func() bool {
		s, err := l.PoolStats(nil)
		if err != nil {
			t.Fatal(err)
		}
		if s.LastError != "" {
			t.Fatal(s.LastError)
		}
		return s.Ready >= n
	})
}

func fewBlanks(n int) spec.PoolConfig {
	return spec.PoolConfig{Min: n, Max: n, WarmUp: n, IdleTimeout: spec.Duration(time.Hour), MaxAge: spec.Duration(time.Hour), CheckEvery: spec.Duration(time.Hour)}
}

func TestAClaimedBlankIsTheSandboxOfTheRequest(t *testing.T) {
	l := newPooledLauncher(t, fewBlanks(1))
	for range 5 {
		awaitBlanks(t, l, 1)
		start := time.Now()
		sb, err := l.Create(t.Context(), launch.Create{Name: "box", Config: spec.Config{Storage: spec.StorageMemory}}, Sources{})
		if err != nil {
			t.Fatal(err)
		}
		took := time.Since(start)
		start = time.Now()
		if r, out := sh(t, sb, "echo hi"); !r.OK() || out.stdout != "hi\n" {
			t.Errorf("%+v %+v", r, out)
		}
		t.Log(took, time.Since(start), l.blanks.claims[0])
		if err := sb.Close(); err != nil {
			t.Fatal(err)
		}
	}
	l.StopPool()
	checkNothingLeft(t, l)
}
