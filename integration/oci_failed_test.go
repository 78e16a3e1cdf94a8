package integration

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

func TestRunKeepsAContainerWhoseStartFailed(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		b := newBundle(t, []string{"no-such-program"})
		if got := run(t, r.command("run", "--keep", "--bundle", b.dir, "kept")); got.code != 1 && got.code != 127 || !strings.Contains(got.stderr, "not found") {
			t.Errorf("run: %+v", got)
		}
		r.waitUntil("kept", "stopped")
		r.run("delete", "kept")
		if got := run(t, r.command("run", "--bundle", b.dir, "gone")); got.code == 0 {
			t.Errorf("run: %+v", got)
		}
		if ids := r.ids(); len(ids) != 0 {
			t.Errorf("left: %q", ids)
		}
	})
}

// failsTwice is a bundle whose start fails, and whose poststop hook then fails, too.
func failsTwice(t *testing.T) *bundle {
	return newBundle(t, []string{"no-such-program"}, func(s *specs.Spec) {
		s.Hooks = &specs.Hooks{Poststop: []specs.Hook{{Path: "/bin/false"}}}
	})
}

func TestFailedPoststopHookOfAFailedStartIsAWarning(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		if got := run(t, r.command("run", "--bundle", failsTwice(t).dir, "c")); got.code == 0 || strings.Count(got.stderr, "\n") != 1 {
			t.Errorf("run: %+v", got)
		}
		levels := map[string]string{}
		for _, e := range r.logged() {
			levels[e["level"]] = e["msg"]
		}
		if !strings.Contains(levels["error"], "not found") || strings.Contains(levels["error"], "\n") || !strings.Contains(levels["warning"], "hook") {
			t.Errorf("logged: %q", levels)
		}
	})
}

func TestMessagesOnATerminalHaveOneForm(t *testing.T) {
	leavesNothing(t)
	r := ours(t)
	b := failsTwice(t)
	got, p := onTerminal(t, exec.Command(r.program, "--root", r.root, "run", "--bundle", b.dir, "c"))
	p.wait()
	<-got.closed
	lines := strings.Split(strings.TrimSpace(got.output()), "\r\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "sandbox-runtime: warning: ") || !strings.HasPrefix(lines[1], "sandbox-runtime: run failed: ") {
		t.Errorf("%q", lines)
	}
}

// A start on a terminal works with as few descriptors as runc's.
func TestStartOnATerminalNeedsNoMoreDescriptorsThanRuncs(t *testing.T) {
	leavesNothing(t)
	b := newBundle(t, []string{"true"}, withTerminal)
	starts := func(r *ociRuntime, limit int) bool {
		for range 3 {
			cmd := r.command("run", "--bundle", b.dir, "c")
			limited := exec.Command("sh", append([]string{"-c", fmt.Sprintf(`ulimit -Sn %d; exec "$0" "$@"`, limit)}, cmd.Args...)...)
			if got := redirected(t, limited); got.code != 0 {
				_ = run(t, r.command("delete", "--force", "c"))
				return false
			}
		}
		return true
	}
	least, runc := 10, reference(t)
	for !starts(runc, least) {
		if least++; least > 100 {
			t.Fatal("runc starts no container")
		}
	}
	if !starts(ours(t), least) {
		t.Errorf("runc starts a container with %d descriptors", least)
	}
}
