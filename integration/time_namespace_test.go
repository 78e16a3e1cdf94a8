package integration

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// later runs the program in a time namespace whose clocks since boot are ahead.
func (s *sandboxes) later(args ...string) result {
	s.t.Helper()
	cmd := s.command(args...)
	cmd.Args = append([]string{"unshare", "--time", "--boottime", "100000", "--fork", cmd.Path}, cmd.Args[1:]...)
	path, err := exec.LookPath("unshare")
	if err != nil {
		s.t.Fatal(err)
	}
	cmd.Path = path
	return run(s.t, cmd)
}

// Start times in /proc are shifted in a time namespace. A sandbox that lives looks dead if they are compared.
func TestSandboxesLiveForOtherTimeNamespaces(t *testing.T) {
	needTimeNamespaces(t)
	s := newSandboxes(t)
	s.up("box", "--storage", "memory")
	s.sh("box", "echo kept > file")
	pid := s.pid("box")
	id := s.detached("box", "sleep 1000")
	if got := s.later("prune"); got.code != 0 || strings.Contains(got.stdout, "box") {
		t.Errorf("prune: %+v", got)
	}
	if got := s.later("exec", "box", "cat", "file"); got != (result{stdout: "kept\n"}) {
		t.Errorf("exec: %+v", got)
	}
	if got := s.later("list"); got.code != 0 || !strings.Contains(got.stdout, "running") {
		t.Errorf("list: %+v", got)
	}
	if got := s.later("up", "box"); got != (result{0, "box\n", "box is up already\n"}) {
		t.Errorf("up: %+v", got)
	}
	if got := s.later("pause", "box"); got.code != 0 {
		t.Errorf("pause: %+v", got)
	}
	if got := s.later("resume", "box"); got.code != 0 {
		t.Errorf("resume: %+v", got)
	}
	if now := s.pid("box"); now != pid {
		t.Errorf("PID 1 was %d and is %d", pid, now)
	}
	if x, isThere := s.execs("box")[id]; !isThere || x.Ended {
		t.Errorf("the detached command: %+v", x)
	}
	if got := s.later("up", "--storage", "memory", "other"); got.code != 0 {
		t.Errorf("up of another one: %+v", got)
	}
	if got := s.exec("other", "true"); got != (result{}) {
		t.Errorf("exec in the other one: %+v", got)
	}
	if got := s.later("down", "box", "other"); got.code != 0 {
		t.Errorf("down: %+v", got)
	}
	if left := s.state(); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

// A container of an engine is the same.
func TestContainersLiveForOtherTimeNamespaces(t *testing.T) {
	needTimeNamespaces(t)
	s := newSandboxes(t)
	id, p := s.living("sleep 1000")
	if got := s.later("state", id); got.code != 0 || !strings.Contains(got.stdout, `"status": "running"`) {
		t.Errorf("state: %+v", got)
	}
	if got := s.later("delete", id); got.code == 0 {
		t.Errorf("delete of a running container: %+v", got)
	}
	if got := s.later("kill", id, "KILL"); got.code != 0 {
		t.Errorf("kill: %+v", got)
	}
	p.wait()
}

func needTimeNamespaces(t *testing.T) {
	t.Helper()
	reason := ""
	if _, err := os.Stat("/proc/self/ns/time"); err != nil {
		reason = "this kernel has no time namespaces (Linux 5.6)"
	}
	need(t, world(), reason)
}
