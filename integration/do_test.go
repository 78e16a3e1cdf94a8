package integration

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestDoReturnsTheCommandsStatus(t *testing.T) {
	s := newSandboxes(t)
	statusesHold(t, func(args ...string) result { return s.do(append([]string{"--"}, args...)...) })
}

// statusesHold holds that the way to run a command has the command's status.
func statusesHold(t *testing.T, do func(args ...string) result) {
	t.Helper()
	for script, want := range map[string]result{
		"exit 0":                 {0, "", ""},
		"exit 7":                 {7, "", ""},
		"exit 255":               {255, "", ""},
		"echo out; echo err >&2": {0, "out\n", "err\n"},
	} {
		if got := do("sh", "-c", script); got != want {
			t.Errorf("%s: %+v, want %+v", script, got, want)
		}
	}
	for script, want := range map[string]int{"kill -9 $$": 137, "kill -TERM $$": 143, "exec nonsense-command": 127} {
		if got := do("sh", "-c", script); got.code != want {
			t.Errorf("%s: %+v, want %d", script, got, want)
		}
	}
}

func TestDoTellsWhatCannotBeExecuted(t *testing.T) {
	s := newSandboxes(t)
	refusalsHold(t, func(command string) result { return s.do("--", command) }, func(command string) outcome { return s.json("--", command) })
}

// refusalsHold holds that the way to run a command tells of one that cannot be
// executed, to people and in JSON.
func refusalsHold(t *testing.T, do func(command string) result, json func(command string) outcome) {
	t.Helper()
	for command, want := range map[string]int{"nonsense-command": 127, "/nonsense": 127, "/etc/passwd": 126, "/usr": 126} {
		got := do(command)
		if got.code != want || got.stdout != "" || !strings.Contains(got.stderr, command) || strings.Count(got.stderr, "\n") != 1 {
			t.Errorf("%s: %+v, want status %d and one line that names it", command, got, want)
		}
		if o := json(command); o.ExitCode != -1 || !strings.Contains(o.Reason, command) {
			t.Errorf("%s: %+v", command, o)
		}
	}
}

func TestDoPrintsOneResult(t *testing.T) {
	s := newSandboxes(t)
	o := s.json("--", "sh", "-c", "echo out; echo err >&2; exit 3")
	if o.Status != "exited" || o.ExitCode != 3 || o.Stdout != "out\n" || o.Stderr != "err\n" || o.Isolation != "full" {
		t.Errorf("got %+v", o)
	}
	if o.ID == "" || o.Reason == "" || o.DurationMS <= 0 || o.CPUMS <= 0 || o.PeakMemoryBytes == 0 {
		t.Errorf("missing: %+v", o)
	}
	if o.Limits.Memory != "enforced" || o.Limits.CPU != "enforced" || o.Limits.Pids != "enforced" {
		t.Errorf("limits: %+v", o.Limits)
	}
	o = s.json("--", "printf", `\377\000\376`)
	if !bytes.Equal(o.StdoutBase64, []byte{0xff, 0, 0xfe}) || o.Stdout != "" {
		t.Errorf("bytes that are not UTF-8: %+v", o)
	}
	if a, b := s.json("--", "true"), s.json("--", "true"); a.ID == b.ID {
		t.Errorf("two sandboxes have the id %s", a.ID)
	}
}

// What changed is told, once of each exec, also by a process of its own.
func TestDoAndExecTellWhichFilesChanged(t *testing.T) {
	s := newSandboxes(t)
	f := s.json("--", "sh", "-c", `echo 1 > a; echo 1 > /tmp/t; rm /tmp/t; mkdir ~/d; : > "$(printf 'b\377')"`).Files
	if f == nil || !slices.Equal(f.Created, []string{"/home/sandbox/d", "/workspace/a"}) || f.Modified == nil || f.Deleted == nil ||
		len(f.CreatedBase64) != 1 || string(f.CreatedBase64[0]) != "/workspace/b\xff" || f.Truncated {
		t.Errorf("got %+v", f)
	}
	s.up("box")
	s.sh("box", "echo 1 > a; echo 1 > b")
	f = s.execJSON("box", "sh", "-c", "echo 2 > a; rm b").Files
	if f == nil || !slices.Equal(f.Modified, []string{"/workspace/a"}) || !slices.Equal(f.Deleted, []string{"/workspace/b"}) || len(f.Created) > 0 {
		t.Errorf("got %+v", f)
	}
	if f := s.execJSON("box", "true").Files; f == nil || len(f.Created)+len(f.Modified)+len(f.Deleted) > 0 || f.Created == nil {
		t.Errorf("of a command that changes nothing: %+v", f)
	}
}

func TestDoTimeoutKillsTheWholeTree(t *testing.T) {
	s := newSandboxes(t)
	inLongerTime(t, 2*time.Second, func(timeout string) bool {
		begin := time.Now()
		o := s.json("--timeout", timeout, "--", "sh", "-c", "echo a; (setsid sleep 1000 &); sleep 1000")
		if took := time.Since(begin); took < 2*time.Second {
			t.Errorf("took %v", took)
		}
		if o.Status != "timed_out" || o.ExitCode != 124 || o.Reason == "" {
			t.Errorf("got %+v", o)
		}
		return o.Stdout == "a\n"
	})
	inLongerTime(t, 300*time.Millisecond, func(timeout string) bool {
		got := s.do("--timeout", timeout, "--", "sh", "-c", "echo a; trap '' TERM; sleep 1000")
		if got.code != 124 {
			t.Errorf("without --json: %+v", got)
		}
		return got.stdout == "a\n"
	})
}

func TestDoMemoryLimitKills(t *testing.T) {
	s := newSandboxes(t)
	o := s.json("--memory", "64m", "--", "dd", "if=/dev/zero", "of=/dev/null", "bs=1G", "count=1")
	if o.Status != "oom_killed" || o.ExitCode != 137 || !strings.Contains(o.Reason, "raise it with --memory") {
		t.Errorf("got %+v", o)
	}
	if o.PeakMemoryBytes > 64<<20+beyond {
		t.Errorf("peak %d is above the limit", o.PeakMemoryBytes)
	}
}

// A full /tmp of the sandbox is memory too.
func TestDoMemoryLimitHoldsForFilesInMemory(t *testing.T) {
	s := newSandboxes(t)
	o := s.json("--memory", "64m", "--disk", "64m", "--file-size", "1g", "--timeout", "20s", "--", "sh", "-c", "cd /tmp; exec dd if=/dev/zero of=f bs=1M count=500")
	if o.ExitCode == 0 || o.Status == "timed_out" || o.PeakMemoryBytes > 64<<20+beyond {
		t.Errorf("got %+v", o)
	}
}

func TestDoSurvivesForkBombs(t *testing.T) {
	s := newSandboxes(t)
	inLongerTime(t, 4*time.Second, func(timeout string) bool {
		p := start(t, s.command("do", "--json", "--pids", "20", "--timeout", timeout, "--", hostTool(t, "perl"), "-e", "fork while 1"))
		most := 0
		for !p.ended() {
			h, err := readHost()
			if err != nil {
				t.Fatalf("the host is not usable: %v", err)
			}
			n := 0
			for line := range h {
				if strings.HasPrefix(line, "process ") && strings.Contains(line, `: "/usr/bin/perl`) {
					n++
				}
			}
			most = max(most, n)
		}
		var o outcome
		decode(t, p.wait().stdout, &o)
		if most > 20 {
			t.Errorf("up to %d processes at once, more than the limit of 20", most)
		}
		if most < 15 {
			return false // yet
		}
		if o.Status != "timed_out" || !o.hit("limit", "pid") && !o.hit("limit", "process") {
			t.Errorf("no violation tells of the limit: %+v", o)
		}
		return true
	})
}

func TestDoCPULimitHolds(t *testing.T) {
	s := newSandboxes(t)
	start := s.json("--", "true").CPUMS // much of it on an emulated processor
	held := func(o outcome) bool { return o.CPUMS <= 0.3*o.DurationMS+1.5*start }
	o := inTries(func() outcome {
		return s.json("--cpus", "0.2", "--timeout", "2s", "--", "sh", "-c", "while :; do :; done")
	}, held)
	if o.Status != "timed_out" || !held(o) {
		t.Errorf("got %+v, of which the start takes %v ms", o, start)
	}
}

func TestDoFileSizeLimitHolds(t *testing.T) {
	s := newSandboxes(t)
	dir := t.TempDir()
	o := s.json("--file-size", "1m", "--workspace", dir, "--", "dd", "if=/dev/zero", "of=big", "bs=64k", "count=100")
	if o.ExitCode != 128+int(syscall.SIGXFSZ) || o.Status != "limit" || !strings.Contains(o.Reason, "file") {
		t.Errorf("got %+v", o)
	}
	info, err := os.Stat(filepath.Join(dir, "big"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > 1<<20 {
		t.Errorf("a file of %d bytes", info.Size())
	}
}

func TestDoDiskTrafficLimitHolds(t *testing.T) {
	s := newSandboxes(t)
	begin := time.Now()
	o := s.json("--io-write", "2m", "--workspace", t.TempDir(), "--", "dd", "if=/dev/zero", "of=f", "oflag=direct", "bs=512k", "count=10")
	if o.Limits.IO != "enforced" {
		need(t, "no limits of disk traffic on this host")
	}
	if took := time.Since(begin); o.ExitCode != 0 || took < 2*time.Second {
		t.Errorf("5 MiB at 2 MiB/s took %v: %+v", took, o)
	}
}

func TestDoPassesStdinOnlyIfAsked(t *testing.T) {
	s := newSandboxes(t)
	for flag, want := range map[string]string{"-i": "from outside\n", "--interactive": "from outside\n", "": ""} {
		args := []string{"do"}
		if flag != "" {
			args = append(args, flag)
		}
		cmd := s.command(append(args, "--", "cat")...)
		cmd.Stdin = strings.NewReader("from outside\n")
		if got := run(t, cmd); got.code != 0 || got.stdout != want {
			t.Errorf("%q: %+v, want %q", flag, got, want)
		}
	}
}

// Files and /dev/null cannot be waited for as pipes and terminals can.
func TestDoReadsItsInputFromAFile(t *testing.T) {
	s := newSandboxes(t)
	name := filepath.Join(t.TempDir(), "input")
	if err := os.WriteFile(name, []byte("from a file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{name: "from a file\n", os.DevNull: ""} {
		input, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer input.Close()
		cmd := s.command("do", "-i", "--", "cat")
		cmd.Stdin = input
		if got := run(t, cmd); got.code != 0 || got.stdout != want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestDoStreamsAsTheCommandPrints(t *testing.T) {
	s := newSandboxes(t)
	stdin, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := s.command("do", "-i", "--", "sh", "-c", "echo first; read line; echo $line")
	cmd.Stdin = stdin
	p := start(t, cmd)
	stdin.Close()
	defer write.Close()
	p.prints("first\n")
	if _, err := write.WriteString("second\n"); err != nil {
		t.Fatal(err)
	}
	if got := p.wait(); got.code != 0 || got.stdout != "first\nsecond\n" {
		t.Errorf("got %+v", got)
	}
}

func TestDoGivesATerminalOfItsOwn(t *testing.T) {
	s := newSandboxes(t)
	term, p := onTerminal(t, s.command("do", "-i", "-t", "--", "sh", "-c", "tty; test -t 2 && read line && echo \"got $line\"; exit 4"))
	term.shows(t, "/dev/pts/0")
	term.typeIn(t, "hello\n")
	term.shows(t, "got hello")
	if got := p.wait(); got.code != 4 {
		t.Errorf("status %d, want 4", got.code)
	}
}

// readyLoop forks nothing: dash, when SIGINT meets it on its way into a fork,
// waits for the child all the same.
const readyLoop = "echo ready; while :; do :; done"

func TestDoEndsCleanlyOnSignals(t *testing.T) {
	s := newSandboxes(t)
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		p := start(t, s.command("do", "--", "sh", "-c", readyLoop+"; echo never"))
		p.prints("ready\n")
		if err := p.cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		if got := p.wait(); got.code != 128+int(signal) || got.stdout != "ready\n" {
			t.Errorf("%v: %+v, want status %d", signal, got, 128+int(signal))
		}
	}
}

func TestDoCtrlCOnATerminalEndsIt(t *testing.T) {
	s := newSandboxes(t)
	for _, flags := range [][]string{{"do"}, {"do", "-i", "-t"}} {
		term, p := onTerminal(t, s.command(append(flags, "--", "sh", "-c", readyLoop)...))
		term.shows(t, "ready")
		term.typeIn(t, "\x03")
		if got := p.wait(); got.code != 130 {
			t.Errorf("%q: status %d, want 130", flags, got.code)
		}
	}
}

func TestDoTakesUserEnvironmentDirectoryAndHostname(t *testing.T) {
	s := newSandboxes(t)
	got := s.do("--user", "7:8", "--env", "A=b c", "--env", "HOME=/tmp", "--cwd", "/tmp", "--hostname", "box", "--",
		"sh", "-c", "id -u; id -g; echo $A; echo $HOME; pwd; cat /proc/sys/kernel/hostname")
	if want := (result{0, "7\n8\nb c\n/tmp\n/tmp\nbox\n", ""}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := s.do("--user", "9", "--", "id", "-u"); got.stdout != "9\n" {
		t.Errorf("--user 9: %+v", got)
	}
}

func TestDoTakesAConfigFileAndFlagsWin(t *testing.T) {
	s := newSandboxes(t)
	file := filepath.Join(t.TempDir(), "config.json")
	config := `{"hostname": "from-file", "env": {"A": "file", "B": "file"}, "cwd": "/tmp", "limits": {"memory": "64m"}}`
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	got := s.do("--config", file, "--env", "B=flag", "--cwd", "/", "--", "sh", "-c", "cat /proc/sys/kernel/hostname; echo $A $B; pwd")
	if want := (result{0, "from-file\nfile flag\n/\n", ""}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if o := s.json("--config", file, "--", "dd", "if=/dev/zero", "of=/dev/null", "bs=200M", "count=1"); o.Status != "oom_killed" {
		t.Errorf("the file's limit: %+v", o)
	}
}

func TestDoLocalIsNoSandboxAndSaysSo(t *testing.T) {
	s := newSandboxes(t)
	dir := filepath.Join(t.TempDir(), "new", "workspace")
	o := s.json("--local", "--workspace", dir, "--", "sh", "-c", "pwd; id -u; exit 3")
	if o.Isolation != "none" || o.ExitCode != 3 || o.Stdout != dir+"\n0\n" {
		t.Errorf("got %+v", o)
	}
	inLongerTime(t, 300*time.Millisecond, func(timeout string) bool {
		o := s.json("--local", "--timeout", timeout, "--", "sh", "-c", "echo a; sleep 1000 & sleep 1000")
		if o.Status != "timed_out" || o.ExitCode != 124 {
			t.Errorf("timeout: %+v", o)
		}
		return o.Stdout == "a\n"
	})
}

func TestDoRunsManyAtOnce(t *testing.T) {
	s := newSandboxes(t)
	var all []*testProcess
	for range 20 {
		all = append(all, start(t, s.command("do", "--", "sh", "-c", "cat /proc/sys/kernel/random/uuid > f && cat f")))
	}
	seen := map[string]bool{}
	for _, p := range all {
		got := p.wait()
		if got.code != 0 || len(got.stdout) != 37 || seen[got.stdout] {
			t.Errorf("got %+v", got)
		}
		seen[got.stdout] = true
	}
}

func TestDoBoundsWhatItKeepsOfTheOutput(t *testing.T) {
	s := newSandboxes(t)
	o := s.json("--", "sh", "-c", "head -c 100000000 /dev/zero | tr '\\0' x; exit 5")
	if !o.StdoutTruncated || o.ExitCode != 5 || len(o.Stdout) == 0 || len(o.Stdout) > 50_000_000 {
		t.Errorf("%d bytes of output, truncated %v, exit code %d", len(o.Stdout), o.StdoutTruncated, o.ExitCode)
	}
}

func TestSandboxIsAContainerToOCICommands(t *testing.T) {
	s := newSandboxes(t)
	p := start(t, s.command("do", "--", "sh", "-c", "echo ready; sleep 1000"))
	p.prints("ready\n")
	id := strings.TrimSpace(run(t, s.command("list", "--quiet")).stdout)
	var state containerState
	decode(t, run(t, s.command("state", id)).stdout, &state)
	if id == "" || state.ID != id || state.Status != "running" {
		t.Errorf("list shows %q, state %+v", id, state)
	}
	if got := run(t, s.command("kill", id, "KILL")); got.code != 0 {
		t.Errorf("kill: %+v", got)
	}
	if got := p.wait(); got.code != 137 || !strings.Contains(got.stderr, "killed from outside") {
		t.Errorf("do: %+v", got)
	}
}

// A signal ends a program that waits for the file of its configuration.
func TestDoEndsWhileItReadsItsConfiguration(t *testing.T) {
	s := newSandboxes(t)
	fifo := filepath.Join(t.TempDir(), "config.json")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, s.command("do", "--config", fifo, "--", "true"))
	writer, err := os.OpenFile(fifo, os.O_WRONLY, 0) // waits until the program reads
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.wait()
	if status := p.cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGTERM {
		t.Errorf("ended with %v", p.cmd.ProcessState)
	}
}
