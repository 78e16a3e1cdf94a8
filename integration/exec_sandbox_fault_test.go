package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// boxes has two sandboxes: one for what is bad, and one beside it. The test's end
// holds that both go on, and what ran beside it in both.
func (s *sandboxes) boxes(flags ...string) {
	s.t.Helper()
	s.up("box", flags...)
	s.up("beside")
	// Another user's, for what one user may do to its own.
	inside := strings.TrimSuffix(s.exec("--detach", "--user", "77", "box", "sleep", "1021").stdout, "\n")
	beside := s.detached("beside", "exec sleep 1021")
	pids := [2]int{s.pid("box"), s.pid("beside")}
	s.t.Cleanup(func() {
		for i, name := range []string{"box", "beside"} {
			if pid := s.pid(name); pid != pids[i] {
				s.t.Errorf("%s: its PID 1 was %d and is %d", name, pids[i], pid)
			}
			if got := s.sh(name, "echo works"); got != "works\n" {
				s.t.Errorf("%s does not work", name)
			}
		}
		if e := s.execs("box")[inside]; e.Ended || len(e.Pids) != 1 {
			s.t.Errorf("what ran in the sandbox: %+v", e)
		}
		if e := s.execs("beside")[beside]; e.Ended || len(e.Pids) != 1 {
			s.t.Errorf("what ran in the other sandbox: %+v", e)
		}
	})
}

func TestExecInAPausedSandboxIsRefused(t *testing.T) {
	s := newSandboxes(t)
	s.boxes()
	running := start(t, s.command("exec", "box", "sh", "-c", "echo ready; while ! test -e go; do sleep 0.01; done; echo done"))
	running.prints("ready\n")
	s.oci("pause", "box")
	for _, args := range [][]string{{"exec", "box", "true"}, {"exec", "--detach", "box", "true"}, {"exec", "--timeout", "100ms", "box", "true"}} {
		wantRefusal(t, run(t, s.command(args...)), "box is paused.*resume it")
	}
	s.oci("resume", "box")
	s.sh("box", "touch go")
	if got := running.wait(); got != (result{0, "ready\ndone\n", ""}) {
		t.Errorf("what ran meanwhile: %+v", got)
	}
}

func TestExecInASandboxWhosePID1IsGone(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	attached := start(t, s.command("exec", "box", "sh", "-c", "echo ready; sleep 1000"))
	attached.prints("ready\n")
	id := s.detached("box", "sleep 1000")
	kill(t, s.pid("box"), syscall.SIGKILL)
	if got := attached.wait(); got.code != 137 || !strings.Contains(got.stderr, "from outside") {
		t.Errorf("what ran: %+v", got)
	}
	for _, args := range [][]string{{"exec", "box", "true"}, {"exec", "--detach", "box", "true"}, {"attach", "box", id}} {
		wantRefusal(t, run(t, s.command(args...)), "box is not running")
	}
	if o := s.execJSON("box", "true"); o.Status != "error" || !strings.Contains(o.Reason, "not running") {
		t.Errorf("--json: %+v", o)
	}
}

// Whenever it comes, an exec has run, or ended with its sandbox, or is told that
// there is none.
func TestExecWhileTheSandboxGoesDown(t *testing.T) {
	s := newSandboxes(t)
	command := []string{"exec", "box", "sh", "-c", "echo out; exec sleep 0.02"} // it would say that it cannot fork
	for range 5 {
		s.up("box")
		var execs []*testProcess
		for range 3 {
			execs = append(execs, start(t, s.command(command...)))
		}
		down := start(t, s.command("down", "box"))
		for range 3 {
			execs = append(execs, start(t, s.command(command...)))
		}
		if got := down.wait(); got != (result{}) {
			t.Errorf("down: %+v", got)
		}
		for _, p := range execs {
			got := p.wait()
			if got.code == 0 && got.stdout == "out\n" && got.stderr == "" {
				continue
			}
			if got.code != 137 && got.code != 125 && got.code != 255 || strings.Count(got.stderr, "\n") != 1 {
				t.Errorf("exec: %+v", got)
			}
		}
	}
}

func TestExecSurvivesAFloodOfOutput(t *testing.T) {
	s := newSandboxes(t)
	s.boxes()
	flood := []string{"box", "head", "-c", strconv.Itoa(1 << 30), "/dev/zero"}
	o := s.execJSON(flood...)
	if o.ExitCode != 0 || !o.StdoutTruncated || len(o.Stdout) > 50_000_000 {
		t.Errorf("kept: status %d, %d bytes, truncated %v", o.ExitCode, len(o.Stdout), o.StdoutTruncated)
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	cmd := s.command(append([]string{"exec"}, flood...)...)
	cmd.Stdout = null
	p := start(t, cmd)
	if s.sh("box", "echo meanwhile") != "meanwhile\n" {
		t.Error("nothing runs beside it")
	}
	if got := p.wait(); got.code != 0 {
		t.Errorf("passed on: %+v", got)
	}
}

// Who takes no output holds up its own command and nothing else.
func TestExecSurvivesAReaderThatTakesNothing(t *testing.T) {
	s := newSandboxes(t)
	s.boxes()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	cmd := s.command("exec", "--timeout", "1s", "box", "yes")
	cmd.Stdout = write
	p := start(t, cmd)
	write.Close()
	if s.sh("box", "echo meanwhile") != "meanwhile\n" {
		t.Error("nothing runs beside it")
	}
	if got := p.wait(); got.code != 124 {
		t.Errorf("got %+v", got)
	}
}

func TestExecSurvivesClosedStreams(t *testing.T) {
	s := newSandboxes(t)
	s.boxes()
	// All closed, by the command or by who started it, and it goes on for a while.
	if got := s.exec("-i", "box", "sh", "-c", "exec <&- >&- 2>&-; sleep 0.3; exit 4"); got != (result{code: 4}) {
		t.Errorf("closed inside: %+v", got)
	}
	closed := shellCommand(`exec "$@" <&- >&- 2>&-`, s.command("exec", "-i", "box", "sh", "-c", "echo x; sleep 0.1; exit 5").Args...)
	if got := run(t, closed); got.code != 5 && got.code != 125 && got.code != 141 {
		t.Errorf("closed outside: %+v", got)
	}
}

func TestExecSurvivesIgnoredSignals(t *testing.T) {
	s := newSandboxes(t)
	s.boxes()
	deaf := "trap '' TERM INT HUP QUIT; echo ready; while :; do sleep 1000; done"
	inLongerTime(t, 500*time.Millisecond, func(timeout string) bool {
		got := s.exec("--timeout", timeout, "box", "sh", "-c", deaf)
		if got.code != 124 {
			t.Errorf("a timeout: %+v", got)
		}
		return got.stdout == "ready\n"
	})
	p := start(t, s.command("exec", "box", "sh", "-c", deaf))
	p.prints("ready\n")
	kill(t, p.cmd.Process.Pid, syscall.SIGTERM)
	time.Sleep(100 * time.Millisecond)
	kill(t, p.cmd.Process.Pid, syscall.SIGTERM) // now it is meant
	if got := p.wait(); got.code != 137 || strings.Count(got.stderr, "\n") != 1 {
		t.Errorf("a second signal: %+v", got)
	}
}

func TestExecSurvivesForkBombs(t *testing.T) {
	s := newSandboxes(t)
	s.boxes("--pids", "40")
	for _, bomb := range []string{"fork while 1", "while (1) { if (fork == 0) { setpgrp; } }"} {
		inLongerTime(t, 2*time.Second, func(timeout string) bool {
			p := start(t, s.command("exec", "--json", "--timeout", timeout, "box", hostTool(t, "perl"), "-e", bomb))
			eventually(t, "the bomb is at its limit", func() bool {
				var pids []int
				decode(t, s.oci("ps", "--format", "json", "box").stdout, &pids)
				return p.ended() || len(pids) >= 38
			})
			// A sibling has room: the limit of one is not that of all.
			if got := s.exec("box", "echo", "sibling"); !p.ended() && got.stdout != "sibling\n" {
				t.Errorf("beside it: %+v", got)
			}
			o := s.resultOf(p.wait())
			if o.Status != "timed_out" {
				t.Errorf("%s: %+v", bomb, o)
			}
			return o.hit("limit", "process")
		})
		if n := len(s.execs("box")); n != 1 {
			t.Errorf("%s: %d execs afterwards", bomb, n)
		}
	}
}

// Its own user's processes are all a command can end or stop.
func TestExecSurvivesKillsOfAll(t *testing.T) {
	s := newSandboxes(t)
	s.boxes()
	for _, user := range []string{"1000", "0"} {
		for _, signal := range []string{"KILL", "STOP", "TERM"} {
			id := strings.TrimSpace(s.exec("--detach", "--user", user, "box", "sleep", "1022").stdout)
			got := s.exec("--timeout", "3s", "--user", user, "box", "sh", "-c",
				"kill -"+signal+" -1; kill -"+signal+" 1; for i in 1 2 3; do kill -"+signal+" -- -$i; done; exit 3")
			if got.code != 3 && got.code != 1 && got.code != 137 && got.code != 124 && got.code != 143 {
				t.Errorf("--user %s: kill -%s -1: %+v", user, signal, got)
			}
			s.exec("--user", user, "box", "true")
			run(t, s.command("attach", "--kill", "box", id))
		}
	}
}

func TestExecCannotTraceItsNeighbours(t *testing.T) {
	s := newSandboxes(t)
	s.boxes()
	perl := hostTool(t, "perl")
	ptrace, ok := map[string]string{"amd64": "101", "arm64": "117"}[runtime.GOARCH]
	if !ok {
		t.Fatalf("which number has ptrace on %s?", runtime.GOARCH)
	}
	for _, user := range []string{"1000", "0"} {
		target := strings.TrimSpace(s.exec("--detach", "--user", user, "box", "sleep", "1023").stdout)
		// PTRACE_ATTACH is 16, PTRACE_SEIZE 0x4206.
		script := `for (glob "/proc/[0-9]*") { m,(\d+), or next; next if $1 == $$; print "traced $1\n" if syscall(` + ptrace + `, 16, $1 + 0, 0, 0) == 0 ` +
			`|| syscall(` + ptrace + `, 0x4206, $1 + 0, 0, 0) == 0; print "wrote $1\n" if open(F, "+<", "/proc/$1/mem") && sysseek(F, 0x400000, 0) && syswrite(F, "x") }`
		if got := s.exec("--user", user, "box", perl, "-e", script); strings.Contains(got.stdout, "traced") || got.code != 0 {
			t.Errorf("--user %s: %+v", user, got)
		}
		if e := s.execs("box")[target]; e.Ended || len(e.Pids) != 1 {
			t.Errorf("--user %s: the neighbour: %+v", user, e)
		}
	}
}

// What a command leaves in /tmp is memory of the sandbox, which others need; it
// can be taken away again.
func TestExecSurvivesAFullTmp(t *testing.T) {
	s := newSandboxes(t)
	s.boxes("--memory", "100m")
	o := s.execJSON("--timeout", "20s", "box", "sh", "-c", "i=0; while dd if=/dev/zero of=/tmp/f$i bs=1M count=20; do i=$((i+1)); done 2>/dev/null; exit 3")
	if o.Status != "oom_killed" && o.ExitCode != 3 {
		t.Errorf("filling it: %+v", o)
	}
	if got := s.exec("box", "sh", "-c", "rm /tmp/f*; ls /tmp"); got.code != 0 || got.stdout != "" {
		t.Errorf("emptying it: %+v", got)
	}
}

// Every file of /proc and /sys that there is, as every user.
func TestExecSurvivesWritesToProc(t *testing.T) {
	s := newSandboxes(t)
	s.boxes()
	before := settings(t)
	for _, user := range []string{"1000", "0"} {
		o := s.execJSON("--timeout", "15s", "--user", user, "box", "sh", "-c",
			`for f in $(find /proc /sys -type f 2>/dev/null); do for v in 0 1 -1000 max; do echo $v > "$f"; done; done 2>/dev/null; echo end`)
		if o.Status != "exited" && o.Status != "timed_out" && o.Status != "signaled" && o.Status != "oom_killed" {
			t.Errorf("--user %s: %+v", user, o)
		}
	}
	if after := settings(t); after != before {
		t.Errorf("settings of the host changed from\n%s\nto\n%s", before, after)
	}
}

// settings are those of the host that a write could change for everybody.
func settings(t testing.TB) string {
	t.Helper()
	var all strings.Builder
	for _, pattern := range []string{"/proc/sys/kernel/*", "/proc/sys/vm/*", "/proc/sys/fs/*", "/proc/sys/net/core/*"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			switch filepath.Base(path) {
			case "ns_last_pid", "dentry-state", "inode-nr", "inode-state", "file-nr", "aio-nr", "pty", "random",
				"hung_task_detect_count", "hung_task_warnings":
				continue // they count
			case "perf_event_max_sample_rate":
				continue // the kernel lowers it where its interrupts take long
			}
			if data, err := os.ReadFile(path); err == nil {
				fmt.Fprintf(&all, "%s: %s", path, data)
			}
		}
	}
	return all.String()
}
