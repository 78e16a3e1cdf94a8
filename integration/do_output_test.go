package integration

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Whoever reads the output ends before the command: the command learns of it,
// and the sandbox is removed.
func TestDoSurvivesAReaderThatHasHadEnough(t *testing.T) {
	s := newSandboxes(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := s.command("do", "--", "yes")
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if _, err := r.Read(make([]byte, 2)); err != nil {
		t.Error(err)
	}
	r.Close()
	cmd.Wait()
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.ExitStatus() != 128+int(unix.SIGPIPE) {
		t.Errorf("ended with %v, want status 141 of its own", cmd.ProcessState)
	}
}

// A reader that takes nothing keeps a command past neither its timeout nor a
// signal.
func TestDoEndsThoughNobodyTakesItsOutput(t *testing.T) {
	s := newSandboxes(t)
	for _, flags := range [][]string{{"--timeout", "300ms", "--"}, {"--"}} {
		cmd := s.command(append(append([]string{"do"}, flags...), "yes")...)
		reader, out, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		cmd.Stdout = out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		out.Close()
		ended := make(chan struct{})
		go func() { cmd.Wait(); close(ended) }()
		t.Cleanup(func() {
			cmd.Process.Kill()
			<-ended
		})
		if len(flags) == 1 {
			before := 0
			eventually(t, "no more is printed", func() bool {
				time.Sleep(50 * time.Millisecond)
				n, err := unix.IoctlGetInt(int(reader.Fd()), unix.TIOCINQ)
				full := err == nil && n > 0 && n == before
				before = n
				return full
			})
			cmd.Process.Signal(unix.SIGINT)
			time.Sleep(100 * time.Millisecond)
			cmd.Process.Signal(unix.SIGINT)
		}
		select {
		case <-ended:
		case <-time.After(patience):
			t.Errorf("do %v yes is still there", flags)
		}
	}
}

// shellCommand runs a script with arguments.
func shellCommand(script string, args ...string) *exec.Cmd {
	return exec.Command("/bin/sh", append([]string{"-c", script, "sh"}, args...)...)
}

// nohup's promise is kept.
func TestDoLeavesIgnoredSignalsIgnored(t *testing.T) {
	s := newSandboxes(t)
	binary := s.command("do", "--", "sh", "-c", "sleep 1; echo done")
	got := run(t, shellCommand(`trap "" HUP; "$@" & sleep 0.5; kill -HUP $!; wait $!`, binary.Args...))
	if got.code != 0 || got.stdout != "done\n" {
		t.Errorf("got %+v", got)
	}
}

func TestDoRefusesKernelFileSystemsBelowUsr(t *testing.T) {
	s := newSandboxes(t)
	const below = "/usr/local/src"
	if err := unix.Mount("/proc", below, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(below, 0); err != nil {
			t.Error(err)
		}
	}()
	if got := s.do("--", "true"); got.code != 125 || !strings.Contains(got.stderr, below) {
		t.Errorf("got %+v", got)
	}
}

func TestLocalRefusesWhatItCannotHold(t *testing.T) {
	s := newSandboxes(t)
	for _, flags := range [][]string{{"--memory", "1g"}, {"--user", "0"}, {"--seccomp", "strict"}, {"--network", "none"}, {"--cwd", "/"}} {
		got := s.do(append(append([]string{"--local"}, flags...), "--", "true")...)
		if got.code != 125 || strings.Count(got.stderr, "\n") != 1 {
			t.Errorf("%v: %+v", flags, got)
		}
	}
}

// A person at a terminal learns at the end why a command failed, and of limits that it has met. A
// program that reads stderr gets the command's own bytes only.
func TestEndsAreToldOnATerminal(t *testing.T) {
	s := newSandboxes(t)
	for name, test := range map[string]struct {
		script, says string
		code         int
		flags        []string
	}{
		"failure": {"exit 3", "", 3, nil},
		"failure without network": {"bash -c ': < /dev/tcp/192.0.2.1/80' 2>/dev/null; exit 3",
			"sandbox-runtime: the command ended with exit code 3; a connection or a lookup of a name failed, since the sandbox has no network (--network none)", 3, nil},
		"success":                 {"exit 0", "", 0, nil},
		"success after a refusal": {"getent hosts refused.test; exit 0", "", 0, []string{"--network", "proxied"}},
		"a child out of memory": {"dd if=/dev/zero of=/dev/null bs=1G count=1 2>/dev/null; exit 0",
			"sandbox-runtime: the command succeeded; memory ran out at 64m, and the kernel killed a process it had started (raise it with --memory)", 0, nil},
		"refused forks": {"for i in $(seq 40); do sleep 3 & done 2>/dev/null; exit 0",
			"the limit of 20 processes and threads was reached (raise it with --pids)", -1, nil},
	} {
		args := append([]string{"do", "--memory", "64m", "--pids", "20"}, test.flags...)
		args = append(args, "--", "sh", "-c", test.script)
		term, p := onTerminal(t, s.command(args...))
		code := p.wait().code
		<-term.closed
		got := strings.TrimSpace(term.output())
		if !strings.Contains(got, test.says) || test.says == "" && got != "" || test.code >= 0 && code != test.code {
			t.Errorf("%s: status %d, terminal %q", name, code, got)
		}
		if got := run(t, s.command(args...)); strings.Contains(got.stderr, "sandbox-runtime:") {
			t.Errorf("%s: without a terminal: %q", name, got.stderr)
		}
	}
}
