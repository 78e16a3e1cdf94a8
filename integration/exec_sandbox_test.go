package integration

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestExecInASandboxReturnsTheCommandsStatus(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	exec := func(args ...string) result { return s.exec(append([]string{"box"}, args...)...) }
	statusesHold(t, exec)
	refusalsHold(t, func(command string) result { return exec(command) }, func(command string) outcome { return s.execJSON("box", command) })
}

func TestExecInASandboxPrintsOneResult(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	o := s.execJSON("box", "sh", "-c", "echo out; echo err >&2; exit 3")
	if o.ID != "box" || o.Status != "exited" || o.ExitCode != 3 || o.Stdout != "out\n" || o.Stderr != "err\n" || o.Isolation != "full" {
		t.Errorf("got %+v", o)
	}
	if o.Exec == "" || o.Reason == "" || o.DurationMS <= 0 || o.CPUMS <= 0 || o.Limits.Memory != "enforced" {
		t.Errorf("missing: %+v", o)
	}
	if again := s.execJSON("box", "true"); again.Exec == o.Exec {
		t.Errorf("two commands have the id %s", o.Exec)
	}
	if o := s.execJSON("box", "/no/such"); o.Status != "error" || o.Isolation != "full" || o.Limits.Memory != "enforced" {
		t.Errorf("a command that is not there: %+v", o)
	}
}

// What one command used is in its Result, and nothing of what others did.
func TestExecInASandboxCountsEachCommandAlone(t *testing.T) {
	s := newSandboxes(t)
	s.up("box", "--memory", "400m")
	burner := s.execJSON("box", "sh", "-c", "dd if=/dev/zero of=/dev/null bs=100M count=1 2>/dev/null; i=0; while test $i -lt 300000; do i=$((i+1)); done")
	idle := s.execJSON("box", "sleep", "0.01")
	for range 2 { // while a virtual machine stands still, its time goes on, for whoever was running
		if again := s.execJSON("box", "sleep", "0.01"); again.CPUMS < idle.CPUMS {
			idle = again
		}
	}
	if burner.PeakMemoryBytes < 100<<20 || idle.PeakMemoryBytes > 50<<20 || idle.PeakMemoryBytes == 0 {
		t.Errorf("peaks: %d of who used 100 MiB, %d of who used nothing", burner.PeakMemoryBytes, idle.PeakMemoryBytes)
	}
	if idle.CPUMS*3 > burner.CPUMS {
		t.Errorf("processor time: %v ms of who burnt it, %v ms of who slept", burner.CPUMS, idle.CPUMS)
	}
}

func TestExecInASandboxTakesTheFlagsOfRunc(t *testing.T) {
	s := newSandboxes(t)
	s.up("box", "--env", "A=box", "--env", "B=box", "--user", "5:6", "--cwd", "/tmp")
	show := []string{"sh", "-c", "id -u; id -g; pwd; echo $A $B"}
	for flags, want := range map[string]string{
		"":                              "5\n6\n/tmp\nbox box\n",
		"--cwd /usr --env B=exec":       "5\n6\n/usr\nbox exec\n",
		"-u 7:8 -e A=x":                 "7\n8\n/tmp\nx box\n",
		"--user 0 --no-new-privs":       "0\n0\n/tmp\nbox box\n",
		"--no-new-privs=true --user=9":  "9\n9\n/tmp\nbox box\n",
		"--additional-gids 77 -g 78 -i": "5\n6\n/tmp\nbox box\n",
	} {
		if got := s.exec(append(append(strings.Fields(flags), "box"), show...)...); got != (result{0, want, ""}) {
			t.Errorf("exec %s: %+v, want %q", flags, got, want)
		}
	}
	got := s.exec("--additional-gids", "77", "-g", "78", "box", "grep", "^Groups:", "/proc/self/status")
	if fields := strings.Fields(got.stdout); !slices.Contains(fields, "77") || !slices.Contains(fields, "78") {
		t.Errorf("groups: %+v", got)
	}
	// Flags after the name are the command's.
	if got := s.exec("box", "echo", "--cwd", "/", "-t"); got.stdout != "--cwd / -t\n" {
		t.Errorf("got %+v", got)
	}
}

// Root inside is nobody, in an exec too.
func TestExecInASandboxGivesRootNothing(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	got := s.exec("--user", "0", "box", "sh", "-c", "id -u; grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status | tr -d '\\t'; echo > /usr/canary; kill -9 1; cat /etc/shadow; mount -t tmpfs x /tmp")
	want := "0\nCapInh:0000000000000000\nCapPrm:0000000000000000\nCapEff:0000000000000000\nCapBnd:0000000000000000\nCapAmb:0000000000000000\nNoNewPrivs:1\nSeccomp:2\n"
	if got.code == 0 || got.stdout != want || strings.Count(got.stderr, "\n") < 4 {
		t.Errorf("got %+v", got)
	}
	s.sh("box", "true")
}

// Nothing of the caller is in reach but what was passed on.
func TestExecInASandboxHasNothingOfItsCaller(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	f, err := os.Open("/etc/hostname")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := s.command("exec", "box", "sh", "-c", "ls /proc/self/fd; cat; env | grep CANARY; ls -l /proc/self/fd/0")
	cmd.Stdin = strings.NewReader("from outside\n")
	cmd.ExtraFiles = []*os.File{f, f, f}
	cmd.Env = append(os.Environ(), "CANARY=secret")
	got := run(t, cmd)
	if lines := strings.Split(got.stdout, "\n"); got.code != 0 || len(lines) != 6 || !strings.HasSuffix(lines[4], "/dev/null") {
		t.Errorf("got %+v", got)
	}
}

func TestExecInASandboxPassesStdinIfAsked(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	for _, flag := range []string{"-i", "--interactive"} {
		cmd := s.command("exec", flag, "box", "cat")
		cmd.Stdin = strings.NewReader("from outside\n")
		if got := run(t, cmd); got != (result{0, "from outside\n", ""}) {
			t.Errorf("%s: %+v", flag, got)
		}
	}
	// More than any pipe holds, both ways.
	cmd := s.command("exec", "-i", "box", "sh", "-c", "tee /dev/stderr")
	big := bytes.Repeat([]byte("0123456789abcde\n"), 1<<18)
	cmd.Stdin = bytes.NewReader(big)
	if got := run(t, cmd); got.code != 0 || got.stdout != string(big) || got.stderr != string(big) {
		t.Errorf("status %d, %d and %d bytes of %d", got.code, len(got.stdout), len(got.stderr), len(big))
	}
	// Who reads nothing is not waited for.
	cmd = s.command("exec", "-i", "box", "true")
	stdin, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer write.Close()
	cmd.Stdin = stdin
	p := start(t, cmd)
	stdin.Close()
	if got := p.wait(); got.code != 0 {
		t.Errorf("with an open stdin: %+v", got)
	}
}

func TestExecInASandboxGivesATerminal(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	for _, flags := range [][]string{{"-it"}, {"-t", "-i"}, {"--tty", "--interactive"}} {
		args := append(append([]string{"exec"}, flags...), "box", "sh", "-c", "tty; test -t 2 && read line && echo \"got $line\"; exit 4")
		term, p := onTerminal(t, s.command(args...))
		term.shows(t, "/dev/pts/")
		term.typeIn(t, "hello\n")
		term.shows(t, "got hello")
		if got := p.wait(); got.code != 4 {
			t.Errorf("%v: status %d, want 4", flags, got.code)
		}
	}
	term, p := onTerminal(t, s.command("exec", "-it", "box", "sh", "-c", readyLoop))
	term.shows(t, "ready")
	term.typeIn(t, "\x03")
	if got := p.wait(); got.code != 130 {
		t.Errorf("^C: status %d, want 130", got.code)
	}
}

// Input that ends, ends for the command as well, although it has a terminal.
func TestExecOnATerminalHasAnEndOfInput(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	for input, prints := range map[string]string{"": "", "line\n": "line", "half": "half"} {
		cmd := s.command("exec", "-it", "--timeout", "30s", "box", "sh", "-c", "stty -echo; cat; exit 4")
		cmd.Stdin = strings.NewReader(input)
		if got := run(t, cmd); got.code != 4 || !strings.Contains(got.stdout, prints) {
			t.Errorf("%q: %+v", input, got)
		}
	}
}

func TestExecInASandboxPassesSignalsOn(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	other := start(t, s.command("exec", "box", "sh", "-c", "trap 'exit 9' INT TERM HUP; "+readyLoop))
	other.prints("ready\n")
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		p := start(t, s.command("exec", "box", "sh", "-c", readyLoop))
		p.prints("ready\n")
		kill(t, p.cmd.Process.Pid, signal)
		if got := p.wait(); got.code != 128+int(signal) || got.stdout != "ready\n" {
			t.Errorf("%v: %+v, want status %d", signal, got, 128+int(signal))
		}
	}
	if other.ended() {
		t.Error("a signal reached another command of the sandbox")
	}
	kill(t, other.cmd.Process.Pid, syscall.SIGTERM)
	if got := other.wait(); got.code != 9 {
		t.Errorf("its handler: %+v", got)
	}
}

// What the command left running goes with it, and nothing else.
func TestExecInASandboxTakesItsTreeAlong(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	s.asleep("box", "1006")
	s.sh("box", "(setsid sleep 1007 >/dev/null 2>&1 &); sleep 1008 >/dev/null 2>&1 &")
	if got := s.sleeps("box"); !slices.Equal(got, []string{"1006"}) {
		t.Errorf("asleep afterwards: %q", got)
	}
}

// sleeps are the arguments of the sandbox's processes that sleep, in order.
func (s *sandboxes) sleeps(name string) []string {
	s.t.Helper()
	var found []string
	for line := range strings.Lines(s.oci("ps", name, "-eo", "pid,args").stdout) {
		if f := strings.Fields(line); len(f) == 3 && f[1] == "sleep" {
			found = append(found, f[2])
		}
	}
	slices.Sort(found)
	return found
}

// asleep has a detached command sleep in the sandbox for so many seconds, and
// returns its id once it does.
func (s *sandboxes) asleep(name, seconds string) (id string) {
	s.t.Helper()
	id = s.detached(name, "exec sleep "+seconds)
	eventually(s.t, "it sleeps", func() bool { return slices.Contains(s.sleeps(name), seconds) })
	return id
}

// A timeout ends the command with all it started, however far that went, and
// nothing else in the sandbox.
func TestExecTimeoutSparesTheOthers(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	one := start(t, s.command("exec", "-i", "box", "sh", "-c", "echo ready; read line; echo $line"))
	stdin, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	cmd := s.command("exec", "-i", "box", "sh", "-c", "echo ready; read line; echo $line")
	cmd.Stdin = stdin
	two := start(t, cmd)
	two.prints("ready\n")
	one.wait() // it has no input: it was there, and has ended by itself
	counter := start(t, s.command("exec", "box", "sh", "-c", "i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done"))
	s.asleep("box", "1009")

	script := "echo a; (setsid sh -c 'setsid sleep 1010 & setsid sleep 1011 & wait' &); trap '' TERM; sleep 1012 & wait; sleep 1013"
	inLongerTime(t, time.Second, func(timeout string) bool {
		o := s.execJSON("--timeout", timeout, "box", "sh", "-c", script)
		if o.Status != "timed_out" || o.ExitCode != 124 || !strings.Contains(o.Reason, timeout) || o.DurationMS < 1000 {
			t.Errorf("got %+v", o)
		}
		return o.Stdout == "a\n"
	})
	if got := s.sleeps("box"); slices.ContainsFunc(got, func(n string) bool { return n >= "1010" && n < "1014" }) || !slices.Contains(got, "1009") {
		t.Errorf("asleep afterwards: %q", got)
	}
	if _, err := write.WriteString("second\n"); err != nil {
		t.Fatal(err)
	}
	write.Close()
	if got := two.wait(); got != (result{0, "ready\nsecond\n", ""}) {
		t.Errorf("the one that waited: %+v", got)
	}
	at := strings.Count(counter.stdout(), "\n")
	eventually(t, "the one that counts goes on", func() bool { return !counter.ended() && strings.Count(counter.stdout(), "\n") > at+5 })
	interrupt(t, counter)

	inLongerTime(t, 300*time.Millisecond, func(timeout string) bool {
		got := s.exec("--timeout", timeout, "box", "sh", "-c", "echo a; trap '' TERM; sleep 1000")
		if got.code != 124 || !strings.Contains(got.stderr, timeout) {
			t.Errorf("without --json: %+v", got)
		}
		return got.stdout == "a\n"
	})
}

// The time of up is that of each command that does not say otherwise.
func TestUpsTimeoutHoldsForItsCommands(t *testing.T) {
	s := newSandboxes(t)
	s.up("box", "--timeout", "1s")
	if o := s.execJSON("box", "sleep", "1000"); o.Status != "timed_out" {
		t.Errorf("got %+v", o)
	}
	if o := s.execJSON("--timeout", "1m", "box", "sleep", "1.5"); o.Status != "exited" {
		t.Errorf("with more time: %+v", o)
	}
	if got := s.exec("--timeout", "1m", "box", "echo", "works"); got != (result{stdout: "works\n"}) {
		t.Errorf("afterwards: %+v", got)
	}
}

func TestExecLimitsHoldForOneCommand(t *testing.T) {
	s := newSandboxes(t)
	s.up("box", "--memory", "300m")
	hog := []string{"box", "dd", "if=/dev/zero", "of=/dev/null", "bs=100M", "count=1"}
	o := s.execJSON(append([]string{"--memory", "40m"}, hog...)...)
	if o.Status != "oom_killed" || !strings.Contains(o.Reason, "40m") || o.PeakMemoryBytes > 40<<20+beyond {
		t.Errorf("memory: %+v", o)
	}
	if o := s.execJSON(hog...); o.Status != "exited" || o.ExitCode != 0 {
		t.Errorf("without the limit: %+v", o)
	}
	o = s.execJSON("--pids", "16", "--timeout", "20s", "box", "sh", "-c", "for i in 1 2 3 4 5 6; do sleep 1000 & sleep 1000 & sleep 1000 & done")
	if !o.hit("limit", "16 processes") {
		t.Errorf("pids: %+v", o)
	}
	o = s.execJSON("--file-size", "1m", "box", "dd", "if=/dev/zero", "of=/tmp/big", "bs=64k", "count=100")
	if o.Status != "limit" || o.Signal != "SIGXFSZ" || !strings.Contains(o.Reason, "1m") {
		t.Errorf("file size: %+v", o)
	}
	held := func(o outcome) bool { return o.CPUMS <= 0.35*o.DurationMS }
	o = inTries(func() outcome {
		return s.execJSON("--cpus", "0.2", "--timeout", "2s", "box", "sh", "-c", "while :; do :; done")
	}, held)
	if o.Status != "timed_out" || !held(o) {
		t.Errorf("cpus: %+v", o)
	}
}

// A command that eats all memory is killed with all it has started; the agent
// and the others live.
func TestMemoryBombEndsAlone(t *testing.T) {
	s := newSandboxes(t)
	s.up("box", "--memory", "150m")
	other := start(t, s.command("exec", "-i", "box", "sh", "-c", "echo ready; read line; exit 6"))
	stdin, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	other.kill()
	cmd := s.command("exec", "-i", "box", "sh", "-c", "echo ready; read line; exit 6")
	cmd.Stdin = stdin
	other = start(t, cmd)
	stdin.Close()
	other.prints("ready\n")
	id := s.asleep("box", "1014")
	for _, flags := range [][]string{{"--memory", "60m"}, nil} {
		o := s.execJSON(append(flags, "box", "sh", "-c", "sleep 1015 & exec "+hostTool(t, "perl")+" -e '$x .= q(x) x 1e6 while 1'")...)
		if o.Status != "oom_killed" || o.ExitCode != 137 || !o.hit("limit", "memory") {
			t.Errorf("%q: %+v", flags, o)
		}
		if got := s.sleeps("box"); !slices.Equal(got, []string{"1014"}) {
			t.Errorf("%q: asleep afterwards: %q", flags, got)
		}
	}
	write.Close()
	if got := other.wait(); got.code != 6 {
		t.Errorf("the sibling: %+v", got)
	}
	if e := s.execs("box")[id]; e.Ended || len(e.Pids) != 1 {
		t.Errorf("the detached sibling: %+v", e)
	}
	s.sh("box", "true")
}

func TestDetachedExecIsFollowedLater(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	id := s.detached("box", "echo first; echo err >&2; while ! test -e go; do sleep 0.02; done; echo last; exit 5")
	e := s.execs("box")[id]
	if !e.Detached || e.Ended || len(e.Pids) == 0 || e.Args[0] != "sh" || time.Since(e.Started) > patience {
		t.Errorf("ps --execs: %+v", e)
	}
	table := s.oci("ps", "--execs", "box").stdout
	if lines := strings.Split(table, "\n"); len(lines) != 3 || !strings.HasPrefix(lines[0], "ID ") || !strings.HasPrefix(lines[1], id+" ") ||
		!strings.Contains(lines[1], "detached") || !slices.ContainsFunc(e.Pids, func(pid int) bool { return strings.Contains(lines[1], strconv.Itoa(pid)) }) {
		t.Errorf("ps --execs: %q", table)
	}
	p := start(t, s.command("attach", "box", id))
	p.prints("first\n")
	s.sh("box", "touch go")
	if got := p.wait(); got != (result{5, "first\nlast\n", "err\n"}) {
		t.Errorf("attach: %+v", got)
	}
	// That was told, and is told once.
	got := run(t, s.command("attach", "box", id))
	if got.code != 125 || strings.Count(got.stderr, "\n") != 1 || !strings.Contains(got.stderr, id) {
		t.Errorf("the second time: %+v", got)
	}
	if execs := s.execs("box"); len(execs) != 0 {
		t.Errorf("left: %+v", execs)
	}
}

func TestDetachedExecThatHasEndedKeepsItsResult(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	id := s.detached("box", "echo out; echo err >&2; exit 3")
	eventually(t, "it has ended", func() bool { return s.execs("box")[id].Ended })
	if table := s.oci("ps", "--execs", "box").stdout; !strings.Contains(table, "ended") {
		t.Errorf("ps --execs: %q", table)
	}
	o := s.resultOf(run(t, s.command("attach", "--json", "box", id)))
	if o.Exec != id || o.ID != "box" || o.Status != "exited" || o.ExitCode != 3 || o.Stdout != "out\n" || o.Stderr != "err\n" {
		t.Errorf("attach --json: %+v", o)
	}
}

// Who attaches may leave again; who wants the command gone says so.
func TestAttachInterruptedLetsTheCommandGoOn(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	id := s.detached("box", "echo ready; trap '' TERM; (setsid sleep 1016 &); sleep 1017; sleep 1018")
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		p := start(t, s.command("attach", "box", id))
		p.prints("ready\n")
		kill(t, p.cmd.Process.Pid, signal)
		if got := p.wait(); signal == syscall.SIGINT && (got.code != 125 || !strings.HasSuffix(got.stderr, "goes on\n")) {
			t.Errorf("interrupted: %+v", got)
		}
		if e := s.execs("box")[id]; e.Ended || len(e.Pids) == 0 {
			t.Errorf("after %v: %+v", signal, e)
		}
	}
	if got := run(t, s.command("attach", "--kill", "box", id)); got.code != 137 || got.stdout != "ready\n" {
		t.Errorf("attach --kill: %+v", got)
	}
	if got := s.sleeps("box"); len(got) != 0 {
		t.Errorf("asleep afterwards: %q", got)
	}
}

// Output is kept to a bound and dropped after it: a command that nobody attaches
// to neither blocks nor fills the disk.
func TestDetachedExecKeepsABoundedOutput(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	id := s.detached("box", "head -c 100000000 /dev/zero | tr '\\0' x; exit 5")
	eventually(t, "it has ended", func() bool { return s.execs("box")[id].Ended })
	o := s.resultOf(run(t, s.command("attach", "--json", "box", id)))
	if !o.StdoutTruncated || o.ExitCode != 5 || len(o.Stdout) == 0 || len(o.Stdout) > 50_000_000 {
		t.Errorf("%d bytes of output, truncated %v, exit code %d", len(o.Stdout), o.StdoutTruncated, o.ExitCode)
	}
}

func TestExecInASandboxWritesThePidFile(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	for _, detach := range []bool{true, false} {
		file := filepath.Join(t.TempDir(), "pid")
		args := []string{"exec", "--pid-file", file}
		if detach {
			args = append(args, "--detach")
		}
		p := start(t, s.command(append(args, "box", "sh", "-c", "sleep 1019 & wait")...))
		eventually(t, "the pid file is there", func() bool { return exists(file) })
		pid, err := strconv.Atoi(content(t, file))
		if err != nil {
			t.Fatal(err)
		}
		if command := content(t, fmt.Sprintf("/proc/%d/cmdline", pid)); command != "sh\x00-c\x00sleep 1019 & wait\x00" {
			t.Errorf("detached %v: %d is %q", detach, pid, command)
		}
		interrupt(t, p)
	}
}

// Without its id a caller cannot end a detached command. So exec ends a command whose id the caller does not learn.
func TestDetachedExecWhoseCallerLearnsNoIDEnds(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	noFile := filepath.Join(t.TempDir(), "missing", "pid")
	for says, test := range map[string]struct {
		flags  []string
		stdout *os.File
	}{
		noFile + ": no such file or directory; the command was ended": {flags: []string{"--pid-file", noFile}},
		"no space left on device; the command was ended":              {stdout: full},
	} {
		cmd := s.command(slices.Concat([]string{"exec", "--detach"}, test.flags, []string{"box", "sleep", "1021"})...)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		if test.stdout != nil {
			cmd.Stdout = test.stdout
		}
		if err := cmd.Run(); cmd.ProcessState.ExitCode() != 125 || !strings.HasSuffix(stderr.String(), says+"\n") {
			t.Errorf("%v, stderr %q, want %q", err, stderr.String(), says)
		}
		if got, all := s.sleeps("box"), s.execs("box"); len(got) > 0 || len(all) > 0 {
			t.Errorf("%s: asleep %q, commands %+v", says, got, all)
		}
	}
}

// execRefusals are arguments of exec on a sandbox that it must refuse, and what
// its one line must say.
var execRefusals = []struct{ args, says string }{
	{"box", "command"},
	{"--memory 12x box true", "--memory.*12x"},
	{"--memory 0 box true", "--memory"},
	{"--memory 1k box true", "memory"},
	{"--pids -5 box true", "--pids"},
	{"--cpus many box true", "--cpus.*many"},
	{"--file-size -1 box true", "--file-size"},
	{"--timeout soon box true", "--timeout.*soon"},
	{"--timeout -1s box true", "timeout"},
	{"--user bob box true", "user bob: no such name"},
	{"--user bob: box true", "--user.*bob:"},
	{"--user 65535 box true", "65535"},
	{"--user 4294967295 box true", "4294967295"},
	{"--additional-gids -1 box true", "-1"},
	{"-g 65535 box true", "65535"},
	{"--env =x box true", "--env.*=x"},
	{"--env noequals box true", "noequals"},
	{"--cwd relative box true", "relative"},
	{"--cwd /not/there box true", "/not/there"},
	{"--tty --json box true", "--tty and --json"},
	{"--detach --tty box true", "--tty and --detach"},
	{"--detach -i box true", "--interactive and --detach"},
	{"--detach --json box true", "--json and --detach"},
	{"--json box", "command"},
	{"--detach --timeout 1s box true", "--timeout and --detach"},
	{"--process /x box", "--process"},
	{"--console-socket /x -t box true", "--console-socket"},
	{"--pidfd-socket /x box true", "--pidfd-socket"},
	{"--preserve-fds 2 box true", "--preserve-fds"},
	{"--process-label x box true", "--process-label"},
	{"--apparmor x box true", "--apparmor"},
	{"--cap CAP_SYS_ADMIN box true", "--cap"},
	{"--cgroup x box true", "--cgroup"},
	{"--no-new-privs=false box true", "--no-new-privs"},
	{"--ignore-paused box true", "--ignore-paused"},
}

func TestExecInASandboxRefusesBadInput(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	for _, row := range execRefusals {
		t.Run(row.args, func(t *testing.T) {
			got := s.exec(strings.Fields(row.args)...)
			if strings.Contains(row.args, "--json") { // then the Result alone has the error
				got.stderr, got.stdout = s.resultOf(got).Reason+"\n", ""
			}
			wantRefusal(t, got, row.says)
		})
	}
	for args, says := range map[string]string{
		"attach box":                "command",
		"attach box nonsense":       "nonsense",
		"attach nobody x":           "nobody",
		"attach --nonsense box x":   "nonsense",
		"attach box ../../../../..": `\.\.`,
	} {
		wantRefusal(t, run(t, s.command(strings.Fields(args)...)), says)
	}
	if got := s.exec("nobody", "true"); got.code != 255 || !strings.Contains(got.stderr, "does not exist") {
		t.Errorf("exec in what is not there: %+v", got)
	}
	// By its flags it was to be a sandbox.
	wantRefusal(t, s.exec("--timeout", "1s", "nobody", "true"), "sandbox nobody does not exist")
	if o := s.resultOf(s.exec("--json", "nobody", "true")); o.Status != "error" || !strings.Contains(o.Reason, "sandbox nobody does not exist") {
		t.Errorf("exec --json in what is not there: %+v", o)
	}
	wantRefusal(t, s.exec("box", ""), "the command is empty")
	if got := run(t, s.command("ps", "--execs", "nobody")); got.code != 1 || !strings.Contains(got.stderr, "sandbox nobody does not exist") {
		t.Errorf("ps --execs of what is not there: %+v", got)
	}
	s.sh("box", "true")
}

// What only sandboxes know is no flag of a container, where it is not guessed at.
func TestExecOfAContainerRefusesFlagsOfSandboxes(t *testing.T) {
	r, _ := sleeper(t)
	for _, flag := range []string{"-i", "--json", "--timeout=1s", "--memory=10m", "--cpus=1", "--pids=5", "--file-size=1m"} {
		got := run(t, r.command("exec", flag, "c", "true"))
		if got.code != 255 || !strings.Contains(got.stderr, "is for sandboxes") {
			t.Errorf("%s: %+v", flag, got)
		}
	}
	if got := run(t, r.command("ps", "--execs", "c")); got.code != 1 || !strings.Contains(got.stderr, "is for sandboxes") {
		t.Errorf("ps --execs: %+v", got)
	}
}

// A failure blames the missing network only if a process has looked for one meanwhile.
func TestReasonsBlameTheNetworkOnEvidence(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	const blame = "; a connection or a lookup of a name failed, since the sandbox has no network (--network none)"
	for _, c := range []struct {
		script string
		blames bool
	}{
		{"false", false},
		{"grep -q x /dev/null", false},
		{"test -f /nothing", false},
		{"ls --wrong-flag", false},
		{"exec 3<>/dev/tcp/127.0.0.1/9", false}, // a closed port of the sandbox itself
		{"exec 3<>/dev/tcp/192.0.2.1/80", true},
		{"exec 3<>/dev/tcp/2001:db8::1/80", true},
		{"echo query > /dev/udp/192.0.2.1/53; exit 1", true},
		{"getent hosts example.test", true},
		{"getent hosts example.test; true", false}, // it succeeds
		{"false", false},                           // the lookup before it was another command's
	} {
		got := s.result("exec", "box", "bash", "-c", c.script)
		want := fmt.Sprintf("the command ended with exit code %d", got.ExitCode)
		if c.blames {
			want += blame
		} else if got.ExitCode == 0 {
			want = "the command succeeded"
		}
		if got.Reason != want {
			t.Errorf("%s: %q, want %q", c.script, got.Reason, want)
		}
	}
}

// A command that fills the shared memory is told so, with each status. Later commands are not.
func TestFilledSharedMemoryIsTold(t *testing.T) {
	s := newSandboxes(t)
	s.up("box", "--shm-size", "1m")
	const full = "/dev/shm (1m) is full (raise it with --shm-size)"
	got := s.result("exec", "box", "sh", "-c", "dd if=/dev/zero of=/dev/shm/f bs=64k count=32 2>/dev/null; true")
	if len(got.Violations) != 1 || got.Violations[0].Detail != full || got.Reason != "the command succeeded; "+full {
		t.Errorf("the command that fills it: %+v", got)
	}
	if got := s.result("exec", "box", "true"); len(got.Violations) != 0 || got.Reason != "the command succeeded" {
		t.Errorf("a later command: %+v", got)
	}
}

// A caller that starts a server with "&" learns why the server does not answer.
func TestReasonsNameTheProcessesThatWereLeft(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	const way = " (start a server as a command of its own, with exec --detach)"
	const executed = "; until grep -q sleep /proc/$!/comm; do :; done" // before, the child has the name of the shell
	for script, want := range map[string]string{
		"sleep 1000 & :" + executed:              `the command succeeded; the processes that it had left running were killed: "sleep"` + way,
		"sleep 1000 & :" + executed + "; exit 3": `the command ended with exit code 3; the processes that it had left running were killed: "sleep"` + way,
		"for i in 1 2 3 4 5; do sleep 1000 & :" + executed + "; done": `the command succeeded; the processes that it had left running were killed: ` +
			`"sleep", "sleep", "sleep" and others` + way,
		"sleep 0 & wait": "the command succeeded",
		"yes | head -1":  "the command succeeded",
	} {
		if got := s.result("exec", "box", "sh", "-c", script).Reason; got != want {
			t.Errorf("%s: %q, want %q", script, got, want)
		}
	}
}
