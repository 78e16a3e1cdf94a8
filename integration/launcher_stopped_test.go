package integration

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
)

// A client of a launcher that is stopped would wait without a word.
func TestAClientTellsThatItsLauncherIsStopped(t *testing.T) {
	s := newSandboxes(t)
	l := s.launcher(filepath.Join(t.TempDir(), "s"))
	c := l.client()
	s.create(c, protocol.Create{Name: "box"})
	p := start(t, exec.Command(binary(t), "--socket", l.socket, "exec", "box", "sh", "-c", "echo begins; exec sleep 1000"))
	eventually(t, "the command to run", func() bool { return strings.Contains(p.stdout(), "begins") })
	pid := l.cmd.Process.Pid
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Kill(pid, unix.SIGCONT) }() // the launcher can have ended
	eventually(t, "a message", func() bool { return strings.Contains(p.stderr(), fmt.Sprintf("kill -CONT %d\n", pid)) })
	if n := strings.Count(p.stderr(), "\n"); n != 1 {
		t.Errorf("%d lines: %q", n, p.stderr())
	}
}
