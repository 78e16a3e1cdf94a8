package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/failpoint"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// blanks lists the directories of blanks and sandboxes.
func (s *sandboxes) blanks() []string {
	dirs, _ := filepath.Glob(filepath.Join(s.root, "@sandboxes", "*")) // the pattern is good
	return dirs
}

// awaitPool waits until the pool has n ready blanks and makes none.
func awaitPool(ctx context.Context, m *sandbox.Manager, n int) error {
	for {
		switch stats, err := m.PoolStats(ctx); {
		case err != nil:
			return err
		case stats.LastError != "":
			return errors.New(stats.LastError)
		case stats.Ready == n && stats.Total == n:
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// scale has a pool refill, grow, shrink, and replace its blanks because of their age.
func (s *sandboxes) scale(ctx context.Context, m *sandbox.Manager) error {
	if err := awaitPool(ctx, m, 1); err != nil {
		return err
	}
	for _, bounds := range []sandbox.PoolConfig{{Min: 3, Max: 3}, {Min: 1, Max: 1}} {
		if _, err := m.ResizePool(ctx, bounds); err != nil {
			return err
		}
		if err := awaitPool(ctx, m, bounds.Max); err != nil {
			return err
		}
	}
	old := s.blanks()
	if _, err := m.ResizePool(ctx, sandbox.PoolConfig{Min: 1, Max: 1, MaxAge: sandbox.Duration(time.Second)}); err != nil {
		return err
	}
	for slices.Equal(s.blanks(), old) {
		if _, err := m.PoolStats(ctx); err != nil {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
	return awaitPool(ctx, m, 1)
}

// Killed at any moment at which the pool makes, ends or replaces blanks, a launcher leaves the sandbox
// that has claimed one, whole. Prune removes the rest.
func TestPoolKilledAtFailpoints(t *testing.T) {
	s, workspace := newSandboxes(t), t.TempDir()
	if err := os.WriteFile(filepath.Join(workspace, "here"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	trace, claimed := s.strikePool(t, 0, workspace)
	if !s.whole("not killed") || !claimed {
		t.Fatal("no sandbox")
	}
	first := slices.IndexFunc(trace.Points, func(p failpoint.Point) bool { return strings.HasSuffix(p.Object, "/box/sandbox.json") })
	points := len(trace.Points)
	some := someFailpoints(points-first, max(1, (points-first)/8))
	kills := make([]int, 2)
	t.Run("lanes", func(t *testing.T) { // a strike mostly waits
		for lane := range kills {
			t.Run(fmt.Sprint(lane), func(t *testing.T) {
				t.Parallel()
				s := &sandboxes{t: t, root: filepath.Join(t.TempDir(), "state")} // the test itself holds that nothing is left
				for i := lane; i < len(some); i += len(kills) {
					n := first + some[i]
					trace, claimed := s.strikePool(t, n, workspace)
					if trace.Killed {
						kills[lane]++
					}
					at := fmt.Sprintf("killed at %d of %d, %v", n, points, trace.Points[len(trace.Points)-1])
					if there := s.whole(at); claimed && !there {
						t.Errorf("%s: the claimed sandbox is lost", at)
					}
				}
			})
		}
	})
	t.Logf("%d failpoints after the claim, %d kills", points-first, kills)
	if slices.Max(kills) == 0 {
		t.Error("never killed")
	}
}

// strikePool kills a launcher at its n-th failpoint, while a sandbox claims a blank and the pool scales. claimed
// says that the sandbox was claimed before the kill. Zero kills nothing.
func (s *sandboxes) strikePool(t *testing.T, n int, workspace string) (trace failpoint.Trace, claimed bool) {
	t.Helper()
	trace = s.killLauncher(t, n, []string{"--pool", "min=1,max=1"}, func(m *sandbox.Manager) error {
		if err := claim(t.Context(), m, workspace); err != nil {
			return err
		}
		claimed = true
		return s.scale(t.Context(), m)
	})
	return trace, claimed
}

// A launcher that ends while it refills its pool and serves claims leaves the claimed sandboxes, whole, and
// nothing else.
func TestPoolEndsDuringClaims(t *testing.T) {
	s := newSandboxes(t)
	for round := range 2 {
		p := newPoolLauncher(s, "--pool", "min=6,max=6")
		p.awaitReady(1 + round)
		var clients sync.WaitGroup
		var mu sync.Mutex
		made := []string{}
		for range 3 {
			clients.Go(func() {
				for {
					box, err := p.Create(context.Background(), sandbox.Config{Storage: sandbox.StorageMemory})
					if errors.Is(err, sandbox.ErrUnavailable) {
						return
					}
					if err != nil {
						t.Errorf("round %d: %v", round, err)
						return
					}
					mu.Lock()
					made = append(made, box.ID())
					mu.Unlock()
				}
			})
		}
		eventually(t, "some sandboxes", func() bool { mu.Lock(); defer mu.Unlock(); return len(made) >= 3+2*round })
		p.end()
		clients.Wait()
		list := strings.Fields(s.oci("list", "--quiet").stdout)
		for _, id := range made {
			if !slices.Contains(list, id) {
				t.Errorf("round %d: %s is lost", round, id)
			}
		}
		for _, id := range list { // also of a request whose answer did not come
			if got := s.sh(id, "hostname"); got != "sandbox\n" {
				t.Errorf("round %d: %s: %q", round, id, got)
			}
			s.wants("down", id)
		}
		if left := s.state(); len(left) > 0 {
			t.Errorf("round %d: left: %q", round, left)
		}
	}
}
