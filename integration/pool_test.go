package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/failpoint"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// readyBlank waits for a blank.
func readyBlank(ctx context.Context, m *sandbox.Manager) error {
	for {
		s, err := m.PoolStats(ctx)
		if err != nil || s.Ready > 0 {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// claim has a sandbox claim a blank.
func claim(ctx context.Context, m *sandbox.Manager, workspace string) error {
	if err := readyBlank(ctx, m); err != nil {
		return err
	}
	c := sandbox.Config{Storage: sandbox.StorageMemory, Workspace: workspace, Hostname: "mine", Limits: sandbox.Limits{Pids: 77}}
	if _, err := m.Create(ctx, c, sandbox.Named("box")); err != nil {
		return err
	}
	s, err := m.PoolStats(ctx)
	if err == nil && s.Hits != 1 {
		err = fmt.Errorf("no blank was claimed: %+v", s)
	}
	return err
}

// whole prunes after a kill, and removes the sandbox "box" that claim has made. It says whether this sandbox was
// there. The sandbox must be whole, and nothing else may be left.
func (s *sandboxes) whole(at string) bool {
	t := s.t
	t.Helper()
	if got := s.oci("prune"); got.code != 0 {
		t.Errorf("%s: prune: %+v", at, got)
	}
	switch list := strings.Fields(s.oci("list", "--quiet").stdout); {
	case len(list) == 0:
		if left := s.state(); len(left) > 0 {
			t.Errorf("%s: left: %q", at, left)
		}
		return false
	case len(list) != 1 || list[0] != "box":
		t.Errorf("%s: there are %q", at, list)
	}
	if got := s.sh("box", "ls; hostname"); got != "here\nmine\n" {
		t.Errorf("%s: the sandbox has %q", at, got)
	}
	if got := s.oci("inspect", "box"); !strings.Contains(got.stdout, `"pids": 77`) {
		t.Errorf("%s: %+v", at, got)
	}
	if got := s.oci("down", "box"); got.code != 0 {
		t.Errorf("%s: down: %+v", at, got)
	}
	if left := s.state(); len(left) > 0 {
		t.Errorf("%s: left after down: %q", at, left)
	}
	return true
}

// Killed at any moment of the start of a pool, a claim, or the end, a launcher leaves the sandbox of
// the request, whole, or none. Prune removes the rest.
func TestClaimKilledAtFailpoints(t *testing.T) {
	s, workspace := newSandboxes(t), t.TempDir()
	if err := os.WriteFile(filepath.Join(workspace, "here"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	strike := func(n int) failpoint.Trace {
		t.Helper()
		return s.killLauncher(t, n, []string{"--pool", "min=1,max=1"}, func(m *sandbox.Manager) error {
			return claim(t.Context(), m, workspace)
		})
	}
	points := len(strike(0).Points)
	if !s.whole("not killed") {
		t.Error("no sandbox")
	}
	kills, there := 0, 0
	for _, n := range someFailpoints(points, max(1, points/15)) {
		trace := strike(n)
		if trace.Killed {
			kills++
		}
		if s.whole("killed at " + trace.Points[len(trace.Points)-1].String()) {
			there++
		}
	}
	t.Logf("%d failpoints, %d kills, %d times the sandbox was there", points, kills, there)
	if kills == 0 {
		t.Error("never killed")
	}
}

// A list has no blank of a pool, also none of a killed launcher. Prune removes these.
func TestBlanksAreNotListed(t *testing.T) {
	s, socket := newSandboxes(t), socketOfTest(t)
	p := s.launcher(socket, "--pool", "min=2,max=2")
	m, err := sandbox.NewManager(sandbox.ManagerConfig{Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "two blanks", func() bool {
		stats, err := m.PoolStats(t.Context())
		return err == nil && stats.Ready == 2
	})
	if got := s.oci("list", "--quiet"); got != (result{}) {
		t.Errorf("list: %+v", got)
	}
	time.Sleep(1500 * time.Millisecond)
	begun := time.Now()
	box, err := m.Create(t.Context(), sandbox.Config{Storage: sandbox.StorageMemory})
	if err != nil {
		t.Fatal(err)
	}
	var listed []struct{ Created time.Time }
	if err := json.Unmarshal([]byte(s.oci("list", "--format", "json").stdout), &listed); err != nil || len(listed) != 1 || listed[0].Created.Before(begun.Add(-time.Second)) {
		t.Errorf("a claimed sandbox is listed as %+v, %v; it was made at %v", listed, err, begun)
	}
	if err := box.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, "two blanks", func() bool {
		stats, err := m.PoolStats(t.Context())
		return err == nil && stats.Ready == 2 && stats.Total == 2
	})
	eventually(t, "the removal is finished", func() bool { return len(s.blanks()) == 2 })
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.wait()
	left := strings.Fields(s.oci("list", "--quiet").stdout)
	if got := s.oci("prune"); len(left) != 0 || strings.Count(got.stdout, "removed") != 2 {
		t.Errorf("after the kill: list: %q, prune: %+v", left, got)
	}
}
