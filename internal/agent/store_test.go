package agent

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestAgentHoldsTheStore where the host finds it, as long as it lives, and lets no
// command have it.
func TestAgentHoldsTheStore(t *testing.T) {
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, func(c *exec.Cmd) { c.ExtraFiles[3] = dir })
	held := fmt.Sprintf("/proc/%d/fd/7", s.cmd.Process.Pid)
	if to, err := os.Readlink(held); err != nil || to != dir.Name() {
		t.Errorf("%s is %q, %v", held, to, err)
	}
	if list := s.ok(t, command("ls", "-l", "/proc/self/fd")); strings.Contains(list, dir.Name()) || strings.Contains(list, " 7 ->") {
		t.Errorf("a command has %s", list)
	}
	if out, exit := s.run(t, command("ls", "-L", "/proc/1/fd/7")); exit.Status == 0 {
		t.Errorf("a command looks into it: %q", out)
	}
}
