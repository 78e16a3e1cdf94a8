package agent

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// openRoot opens a directory as the sandbox has it.
func (s *sandbox) openRoot(t testing.TB, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(fmt.Sprintf("/proc/%d/root%s", s.cmd.Process.Pid, path), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestRootIsTheCommandsOwn(t *testing.T) {
	s := open(t)
	c := command("/bin/sh", "-c", `echo *; pwd; cd ..; cd ..; pwd; ls -d /usr/bin; ls -l /proc/self/root`)
	c.Env, c.Root, c.Dir = []string{"PATH=/bin"}, s.openRoot(t, "/usr"), "/lib"
	out, _ := s.run(t, c)
	if !strings.Contains(out, "\n/lib\n/\n") || strings.Contains(out, "\n/usr/bin\n") {
		t.Errorf("a command in /usr as its root wrote\n%s", out)
	}
	if out := s.mustRun(t, command("ls", "-d", "/usr/bin")); out != "/usr/bin" {
		t.Errorf("the next command without a root found %q", out)
	}
	testhost.Eventually(t, "six descriptors", func() bool { return s.descriptors(t) == 6 })
}

// The agent has the capability, no command does.
func TestCommandsCannotChangeTheirRoot(t *testing.T) {
	s := open(t)
	for _, user := range []uint32{0, 1000} {
		for _, root := range []*os.File{nil, s.openRoot(t, "/")} {
			c := command("/usr/sbin/chroot", "/", "/usr/bin/true")
			c.UID, c.Root = user, root
			if out, exit := s.run(t, c); exit.Status.ExitStatus() != 125 || !strings.Contains(out, "Operation not permitted") {
				t.Errorf("user %d, root %v: status %#x, %q", user, root, exit.Status, out)
			}
		}
	}
}

func TestRootMustBeADirectoryTheUserMayEnter(t *testing.T) {
	s := open(t)
	file, err := os.Open("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	c := command("true")
	c.Root = file
	if _, err := s.Start(within(t, testhost.Patience), c); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("with a file: %v", err)
	}
	// What the check above would have let through by mistake.
	payload := c.encode()
	_, setup := s.sendRequest(t, request{kind: requestExec, with: withRoot, payload: len(payload)}.encode(), payload, int(file.Fd()))
	e, _, err := setup.receive(within(t, testhost.Patience), false)
	if err != nil || e.kind != eventFailed || e.stage != StageRoot || e.errno != unix.ENOTDIR {
		t.Errorf("%+v, %v, want a refusal", e, err)
	}
	c.Root = s.openRoot(t, "/private")
	var refused *StartError
	if _, err := s.Start(within(t, testhost.Patience), c); !errors.As(err, &refused) || refused.Stage != StageRoot || refused.Errno != unix.EACCES {
		t.Errorf("with a closed directory: %v", err)
	}
	s.serves(t)
}

// An agent of before would take the descriptor for another.
func TestOlderAgentsAreAskedForNoRoot(t *testing.T) {
	s := open(t)
	s.version = rootVersion - 1
	c := command("true")
	c.Root = s.openRoot(t, "/")
	var version *VersionError
	_, err := s.Start(within(t, testhost.Patience), c)
	if !errors.As(err, &version) || !strings.Contains(err.Error(), "make the sandbox anew") {
		t.Errorf("with an older agent: %v", err)
	}
	s.serves(t)
}
