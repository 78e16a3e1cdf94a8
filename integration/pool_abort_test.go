package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/failpoint"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// A step of a claim fails. Then there is no sandbox, or a whole one, and later sandboxes of the same
// launcher have nothing of the request. Nothing is left on the host.
func TestClaimWithAStepThatFails(t *testing.T) {
	s, dir := newSandboxes(t), t.TempDir()
	for _, name := range []string{"workspace", "data"} {
		if err := errors.Join(os.Mkdir(filepath.Join(dir, name), 0o755), os.WriteFile(filepath.Join(dir, name, "mine"), nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	request := sandbox.Config{
		Storage: sandbox.StorageMemory, Workspace: filepath.Join(dir, "workspace"), Env: map[string]string{"COLOUR": "mine"},
		Binds: []sandbox.Bind{{Source: filepath.Join(dir, "data"), Target: "/srv/data"}}, Network: sandbox.NetworkFull,
		Limits: sandbox.Limits{NoFile: 77},
	}
	strike := func(n int) failpoint.Trace {
		t.Helper()
		trace := s.failLauncher(t, n, func(m *sandbox.Manager) error { return abortedClaim(t.Context(), m, request) })
		s.oci("prune") // a step of a removal can be the one that fails
		if left := s.state(); len(left) > 0 {
			t.Errorf("%v: left: %q", trace.Failed, left)
			s.oci("down", "box")
			s.oci("prune")
		}
		return trace
	}
	const never = 1 << 20
	points := strike(never).Points
	claims := slices.IndexFunc(points, func(p failpoint.Point) bool { return strings.Contains(p.Object, "@sandboxes/box") })
	exchange := slices.IndexFunc(points, func(p failpoint.Point) bool { return p.Call == "renameat2" && strings.Contains(p.Object, "@sandboxes") })
	if claims < 0 || exchange < 0 {
		t.Fatal("no claim")
	}
	const after = 120 // the first command of the claimed sandbox has begun then
	if t.Failed() {
		t.FailNow()
	}
	for _, n := range someFailpoints(after, after/8) {
		trace := strike(claims + n)
		t.Logf("%d: %v", n, trace.Failed)
	}
}

// failLauncher has a client use a launcher with a pool, one of whose system calls fails.
func (s *sandboxes) failLauncher(t *testing.T, n int, use func(*sandbox.Manager) error) failpoint.Trace {
	t.Helper()
	trace, err, clientErr := s.traceLauncher(t, []string{"--pool", "min=1,max=1"}, use, func(cmd *exec.Cmd) (failpoint.Trace, error) {
		return failpoint.Fail(cmd, n, unix.EIO, patience)
	})
	if err = errors.Join(err, clientErr); err != nil {
		t.Errorf("%d: %v: %v", n, trace.Failed, err)
	}
	return trace
}

// lookAround prints what a request of the test changes in a sandbox.
const lookAround = "ls /workspace /srv/data 2>/dev/null; echo $COLOUR $(grep -c : /proc/net/dev) $(ulimit -n)"

// abortedClaim makes a sandbox from a request, whole or not at all, and then others.
func abortedClaim(ctx context.Context, m *sandbox.Manager, request sandbox.Config) error {
	look := func(sb *sandbox.Sandbox) (string, error) {
		r, err := sb.Run(ctx, lookAround)
		return string(r.Stdout), err
	}
	if readyBlank(ctx, m) != nil { // the step that fails can be one of the answer
		if err := readyBlank(ctx, m); err != nil {
			return err
		}
	}
	box, err := m.Create(ctx, request, sandbox.Named("box"))
	if err == nil {
		got, err := look(box)
		if err != nil { // the step that fails is one of the command
			got, err = look(box)
		}
		if err != nil || got != "/srv/data:\nmine\n\n/workspace:\nmine\nmine 2 77\n" {
			return fmt.Errorf("the sandbox has %q, %w", got, err)
		}
		if err := box.Close(); err != nil {
			err = m.Remove(ctx, "box")
			if err != nil {
				return fmt.Errorf("remove it again: %w", err)
			}
		}
	}
	for i := range 2 {
		if err := readyBlank(ctx, m); err != nil {
			return err
		}
		later, err := m.Create(ctx, sandbox.Config{Storage: sandbox.StorageMemory}, sandbox.Named("box"))
		if err != nil {
			return fmt.Errorf("later sandbox %d: %w", i, err)
		}
		got, err := look(later)
		if err != nil || strings.Contains(got, "mine") || strings.Contains(got, " 2 ") || strings.Contains(got, "77") {
			return fmt.Errorf("later sandbox %d has %q, %w", i, got, err)
		}
		if err := later.Close(); err != nil {
			return err
		}
	}
	return nil
}
