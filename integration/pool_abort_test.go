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

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/failpoint"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// A step of a claim fails. Then there is no sandbox, or a whole one, and later sandboxes of the same
// launcher have nothing of the request. Nothing is left on the host.
func TestClaimWithAStepThatFails(t *testing.T) {
	testhost.Long(t)
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

// abortedClaim makes a sandbox from a request, whole or not at all, and then others. One step of the launcher fails
// meanwhile. It can be a step of any of these calls, so a call that has failed is made once more.
func abortedClaim(ctx context.Context, m *sandbox.Manager, request sandbox.Config) error {
	twice := func(call func() error) error {
		if call() == nil {
			return nil
		}
		return call()
	}
	ready := func() error { return twice(func() error { return readyBlank(ctx, m) }) }
	look := func(box *sandbox.Sandbox) (got string, err error) {
		err = twice(func() error {
			r, err := box.Run(ctx, lookAround)
			got = string(r.Stdout)
			return err
		})
		return got, err
	}
	remove := func(box *sandbox.Sandbox) error {
		if box.Close() == nil {
			return nil
		}
		return m.Remove(ctx, "box")
	}

	if err := ready(); err != nil {
		return err
	}
	box, err := m.Create(ctx, request, sandbox.Named("box"))
	if err == nil {
		if got, err := look(box); err != nil || got != "/srv/data:\nmine\n\n/workspace:\nmine\nmine 2 77\n" {
			return fmt.Errorf("the sandbox has %q, %w", got, err)
		}
		if err := remove(box); err != nil {
			return fmt.Errorf("remove it again: %w", err)
		}
	}
	for i := range 2 {
		if err := ready(); err != nil {
			return fmt.Errorf("later blank %d: %w", i, err)
		}
		var later *sandbox.Sandbox
		if err := twice(func() (err error) {
			later, err = m.Create(ctx, sandbox.Config{Storage: sandbox.StorageMemory}, sandbox.Named("box"))
			return err
		}); err != nil {
			return fmt.Errorf("later sandbox %d: %w", i, err)
		}
		got, err := look(later)
		if err != nil || strings.Contains(got, "mine") || strings.Contains(got, " 2 ") || strings.Contains(got, "77") {
			return fmt.Errorf("later sandbox %d has %q, %w", i, got, err)
		}
		if err := remove(later); err != nil {
			return fmt.Errorf("remove later sandbox %d: %w", i, err)
		}
	}
	return nil
}
