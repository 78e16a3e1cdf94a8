package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// An engine starts containers with the binary under test as its runtime. Each
// method but the last returns a command of the engine's own client.
type engine interface {
	// run runs a container; attached, it ends with the container's status.
	run(*testing.T, container) *exec.Cmd
	// exec runs args in a running container and ends with their status.
	exec(id string, tty bool, args ...string) *exec.Cmd
	// kill sends SIGKILL.
	kill(id string) *exec.Cmd
	// remove removes a container that stopped.
	remove(id string) *exec.Cmd
	// status returns the status a detached container stopped with.
	status(t *testing.T, id string) int
	// startFailure is what run ends with if the runtime could not start the
	// container's command for a reason that a shell would report as status.
	startFailure(status int) int
}

// A container is what a case asks an engine to run.
type container struct {
	id     string
	args   []string
	stdin  bool
	tty    bool
	detach bool   // leave it running, to be removed with remove
	user   string // numeric uid:gid
	memory string // limit in bytes
}

// shell is a container that runs a script.
func shell(id, script string) container {
	return container{id: id, args: []string{"sh", "-c", script}}
}

// untilItSleeps is a script for an exec that prints "sleep" once PID 1 is that: it
// begins as a shell, and may still be one when its container is known to run.
const untilItSleeps = "until grep -x sleep /proc/1/comm; do usleep 10000; done"

// engineCases are what people do with containers, the same for every engine.
var engineCases = []struct {
	name string
	test func(*testing.T, engine)
}{
	{"prints and returns 0", func(t *testing.T, e engine) {
		p, end := attached(t, e, shell("ok", "echo out; echo err >&2; read line"))
		p.prints("out\n")
		eventually(t, "stderr arrives", func() bool { return strings.Contains(p.stderr(), "err") })
		end()
		if got := p.wait(); got.code != 0 || got.stdout != "out\n" {
			t.Errorf("got %+v", got)
		}
	}},
	{"returns 7", func(t *testing.T, e engine) { wantStatus(t, e.run(t, shell("seven", "exit 7")), 7) }},
	{"not executable is 126", func(t *testing.T, e engine) {
		got := run(t, e.run(t, container{id: "noexec", args: []string{"/etc/passwd"}}))
		if got.code != e.startFailure(126) || !strings.Contains(got.stderr, "permission denied") {
			t.Errorf("got %+v", got)
		}
	}},
	{"not found is 127", func(t *testing.T, e engine) {
		got := run(t, e.run(t, container{id: "nofile", args: []string{"nonsense"}}))
		if got.code != e.startFailure(127) || !strings.Contains(got.stderr, "executable file not found in $PATH") {
			t.Errorf("got %+v", got)
		}
	}},
	{"stdin arrives", func(t *testing.T, e engine) {
		// Not to the end: ctr run never closes it.
		p, end := attached(t, e, shell("stdin", "read line && echo \"got $line\" && read line"), "from outside\n")
		p.prints("got from outside\n")
		end()
		if got := p.wait(); got.code != 0 {
			t.Errorf("got %+v", got)
		}
	}},
	{"has a terminal", func(t *testing.T, e engine) {
		c := shell("tty", "test -t 0 && test -t 1 && read line && echo \"got $line\" && read line")
		c.stdin, c.tty = true, true
		term, p := onTerminal(t, e.run(t, c))
		term.typeIn(t, "hello\n")
		term.shows(t, "got hello")
		term.typeIn(t, "\n")
		if got := p.wait(); got.code != 0 {
			t.Errorf("status %d", got.code)
		}
	}},
	{"runs as the user", func(t *testing.T, e engine) {
		c := shell("user", "id -u; id -g; grep CapEff /proc/self/status; read line")
		c.user = "1000:1001"
		p, end := attached(t, e, c)
		p.prints("1000\n1001\nCapEff:\t0000000000000000\n")
		end()
		p.wait()
	}},
	{"memory limit kills with 137", func(t *testing.T, e engine) {
		c := shell("oom", "exec dd if=/dev/zero of=/dev/null bs=200M count=1")
		wantStatus(t, e.run(t, c), 0)
		c.id, c.memory = "limited", "33554432" // what kept the first may be going yet
		wantStatus(t, e.run(t, c), 137)
	}},
	{"exec returns its status", func(t *testing.T, e engine) {
		start := shell("exec", "exec sleep 1000")
		start.detach = true
		wantStatus(t, e.run(t, start), 0)
		// Its shell may not have executed that yet, and ctr may lose what is printed.
		eventually(t, "PID 1 is seen to sleep", func() bool {
			got := run(t, e.exec("exec", false, "cat", "/proc/1/comm"))
			if got.code != 0 {
				t.Errorf("exec: %+v", got)
			}
			return got.stdout == "sleep\n"
		})
		wantStatus(t, e.exec("exec", false, "sh", "-c", "exit 9"), 9)
		term, p := onTerminal(t, e.exec("exec", true, "sh", "-c", "test -t 0 && read line && echo \"got $line\" && read line; exit 5"))
		term.typeIn(t, "hello\n")
		term.shows(t, "got hello")
		term.typeIn(t, "\n")
		if got := p.wait(); got.code != 5 {
			t.Errorf("exec on a terminal: status %d", got.code)
		}
		wantStatus(t, e.kill("exec"), 0)
		e.status(t, "exec")
		wantStatus(t, e.remove("exec"), 0)
	}},
	{"kill ends it with 137", func(t *testing.T, e engine) {
		c := shell("kill", "exec sleep 1000")
		c.detach = true
		wantStatus(t, e.run(t, c), 0)
		wantStatus(t, e.kill("kill"), 0)
		if got := e.status(t, "kill"); got != 137 {
			t.Errorf("status %d, want 137", got)
		}
		wantStatus(t, e.remove("kill"), 0)
	}},
}

// attached runs a container whose script reads a line, and the test writes this
// by end when it has seen what the container prints: ctr gives up what it has not
// opened yet when a container ends.
func attached(t *testing.T, e engine, c container, input ...string) (p *testProcess, end func()) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	send := func(text string) {
		if _, err := w.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	c.stdin = true
	cmd := e.run(t, c)
	cmd.Stdin = r
	p = start(t, cmd)
	r.Close()
	send(strings.Join(input, ""))
	return p, func() { send("\n") }
}

// testEngine runs the cases, or those that are named, and returns their number. After each
// the host is as before it.
func testEngine(t *testing.T, e engine, names ...string) (ran int) {
	t.Helper()
	// What an engine makes once for all containers is there from now on.
	before := processes(t)
	wantStatus(t, e.run(t, shell("first", "true")), 0)
	keepersGo(t, before)
	for _, c := range engineCases {
		if len(names) > 0 && !slices.Contains(names, c.name) {
			continue
		}
		ran++
		t.Run(c.name, func(t *testing.T) {
			leavesNothing(t)
			c.test(t, e)
		})
	}
	return ran
}

func wantStatus(t *testing.T, cmd *exec.Cmd, want int) {
	t.Helper()
	if got := run(t, cmd); got.code != want {
		t.Errorf("%q: status %d, want %d; stdout %s stderr %s", cmd.Args[1:], got.code, want, got.stdout, got.stderr)
	}
}

// peerEnvironment lets the fetched programs find each other and their
// libraries. HOME keeps the user's own configuration out.
func peerEnvironment(home string) []string {
	folder := peersFolder()
	libs, _ := filepath.Glob(filepath.Join(folder, "usr/lib/*-linux-gnu"))
	xtables, _ := filepath.Glob(filepath.Join(folder, "usr/lib/*-linux-gnu/xtables"))
	var path []string
	for _, dir := range []string{"bin", "usr/bin", "usr/sbin"} {
		path = append(path, filepath.Join(folder, dir))
	}
	path = append(path, "/usr/sbin", "/usr/bin", "/sbin", "/bin")
	return []string{
		"HOME=" + home, "XDG_RUNTIME_DIR=" + home, "TMPDIR=" + home, "TERM=xterm",
		"PATH=" + strings.Join(path, ":"),
		"LD_LIBRARY_PATH=" + strings.Join(libs, ":"),
		"XTABLES_LIBDIR=" + strings.Join(xtables, ":"),
	}
}

// daemon starts a daemon and stops it at the test's end, before the leftovers
// are looked for; then ground removes what it keeps for its next start.
func daemon(t *testing.T, cmd *exec.Cmd, ground func()) *testProcess {
	t.Helper()
	d := start(t, cmd)
	t.Cleanup(func() {
		interrupt(t, d)
		ground()
		if t.Failed() {
			t.Logf("%s: %s", filepath.Base(cmd.Path), lastLines(d.stderr(), 40))
		}
	})
	return d
}

func lastLines(text string, n int) string {
	lines := slices.Collect(strings.Lines(text))
	return strings.Join(lines[max(0, len(lines)-n):], "")
}
