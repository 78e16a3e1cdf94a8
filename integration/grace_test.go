package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// repository is a git repository of the host with one change that is not committed. A commit there
// holds index.lock while its editor runs. The editor reads the pipe "edited".
func repository(t *testing.T) (dir string, commit []string) {
	t.Helper()
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("needs git")
	}
	dir = t.TempDir()
	for _, args := range [][]string{
		{"init", "-q"}, {"-c", "user.name=a", "-c", "user.email=a", "commit", "-qm", "first", "--allow-empty"},
	} {
		if out, err := exec.Command(git, append([]string{"-C", dir}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "edited"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, []string{"sh", "-c", "git add file && GIT_EDITOR='cat edited; false' git -c user.name=a -c user.email=a -c safe.directory='*' commit -a; true"}
}

// git removes index.lock when SIGTERM comes. A lock that stays breaks the repository of the host.
func TestNoLockOfGitStaysInTheHostsRepository(t *testing.T) {
	s := newSandboxes(t)
	for name, c := range map[string]struct {
		flags []string
		end   func(p *testProcess) error
		code  int
		says  string
	}{
		"timeout":   {[]string{"--timeout", "3s"}, func(*testProcess) error { return nil }, 124, "the command was still running after 3s and ended after SIGTERM"},
		"interrupt": {nil, func(p *testProcess) error { return p.cmd.Process.Signal(unix.SIGINT) }, 130, ""},
		"terminate": {nil, func(p *testProcess) error { return p.cmd.Process.Signal(unix.SIGTERM) }, 143, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir, commit := repository(t)
			lock := filepath.Join(dir, ".git/index.lock")
			exists := func() bool { _, err := os.Lstat(lock); return err == nil }
			args := append(append([]string{"do", "--workspace", dir, "--grace", "20s"}, c.flags...), "--")
			p := start(t, s.command(append(args, commit...)...))
			// The pipe can be opened once cat itself runs. dash loses a SIGINT between its fork and the start of a program.
			var edited *os.File
			eventually(t, "the editor of git runs", func() (read bool) {
				var err error
				edited, err = os.OpenFile(filepath.Join(dir, "edited"), os.O_WRONLY|unix.O_NONBLOCK, 0)
				return err == nil
			})
			defer edited.Close()
			if !exists() {
				t.Fatal("git holds no lock")
			}
			if err := c.end(p); err != nil {
				t.Fatal(err)
			}
			if got := p.wait(); got.code != c.code || !strings.Contains(got.stderr, c.says) {
				t.Errorf("got %+v", got)
			}
			if exists() {
				t.Error("index.lock is left")
			}
		})
	}
}

// down and exec --timeout end the commands of a sandbox that is up.
func TestCommandsOfASandboxEndByThemselves(t *testing.T) {
	s := newSandboxes(t)
	const obeys = `trap "touch cleaned; exit 0" TERM; touch begun; while :; do sleep 0.05; done`
	for name, end := range map[string]func(t *testing.T, dir string) result{
		"down": func(t *testing.T, dir string) result {
			s.detached("box", obeys)
			eventually(t, "it has begun", func() bool { return wasMade(dir, "begun") })
			return s.oci("down", "box")
		},
		"exec": func(t *testing.T, _ string) result {
			got := s.exec("--timeout", "2s", "box", "sh", "-c", obeys)
			if got.code != 124 || !strings.Contains(got.stderr, "ended by itself after SIGTERM, with exit code 0") {
				t.Errorf("got %+v", got)
			}
			return s.oci("down", "box")
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s.up("box", "--workspace", dir, "--grace", "20s")
			if got := end(t, dir); got.code != 0 {
				t.Errorf("down: %+v", got)
			}
			if !wasMade(dir, "cleaned") {
				t.Error("SIGTERM has not come, or not in time")
			}
		})
	}
}

func wasMade(dir, name string) bool {
	_, err := os.Lstat(filepath.Join(dir, name))
	return err == nil
}

// A command that ignores the signals is killed after the grace, and the message says so.
func TestACommandThatIgnoresASignalIsKilled(t *testing.T) {
	s := newSandboxes(t)
	for _, sig := range []syscall.Signal{unix.SIGINT, unix.SIGTERM} {
		p := start(t, s.command("do", "--grace", "200ms", "--", "sh", "-c", `trap "" TERM INT; echo ready; while :; do sleep 1; done`))
		p.prints("ready\n")
		if err := p.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		want := "the command did not end within 200ms after " + unix.SignalName(sig) + ", and was killed with all it had started"
		if got := p.wait(); got.code != 137 || !strings.Contains(got.stderr, want) {
			t.Errorf("%v: got %+v", sig, got)
		}
	}
}

// A client of a launcher that goes away, or that ends with its launcher, leaves its command the grace.
func TestACommandWithoutItsClientHasTheGrace(t *testing.T) {
	s := newSandboxes(t)
	for name, end := range map[string]func(l *launcherProcess, client *protocol.Client) error{
		"client":   func(_ *launcherProcess, client *protocol.Client) error { return client.Close() },
		"launcher": func(l *launcherProcess, _ *protocol.Client) error { return l.cmd.Process.Signal(unix.SIGTERM) },
	} {
		t.Run(name, func(t *testing.T) {
			l := s.launcher(filepath.Join(t.TempDir(), "socket"), "--grace", "100ms")
			client := l.client()
			id := s.create(client, protocol.Create{Name: "box-" + name, Config: spec.Config{Grace: spec.Grace(20 * time.Second)}}).ID
			command := []string{"sh", "-c", `cd /tmp; trap "touch cleaned; exit 0" TERM; touch begun; while :; do sleep 0.05; done`}
			p, err := client.Start(t.Context(), id, spec.Command{Args: command}, [3]*os.File{})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			eventually(t, "it has begun", func() bool { return s.sh(id, "ls /tmp") == "begun\n" })
			if err := end(l, client); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the command cleans up", func() bool { return s.sh(id, "ls /tmp") == "begun\ncleaned\n" })
		})
	}
}
