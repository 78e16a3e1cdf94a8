package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// many is how many sandboxes there are when something of them is killed.
const many = 20

// A crowd is many sandboxes, each with a detached and an attached exec.
type crowd struct {
	*sandboxes
	names    []string
	detached map[string]string // exec by sandbox
	attached map[string]*testProcess
}

// attachedScript prints a line once all it starts is there, detachedScript goes
// on until somebody makes a file.
const attachedScript = "(setsid sleep 1025 &); echo ready; sleep 1026"

func detachedScript(name string) string {
	return "echo from " + name + "; while ! test -e go; do sleep 0.05; done; echo went; exit 6"
}

// nobody is a crowd of names.
func nobody(s *sandboxes) *crowd {
	s.t.Helper()
	c := &crowd{sandboxes: s, detached: map[string]string{}, attached: map[string]*testProcess{}}
	for i := range many {
		name := fmt.Sprintf("box-%02d", i)
		c.names = append(c.names, name)
		s.t.Cleanup(func() { s.downIfUp(name) })
	}
	return c
}

func newCrowd(s *sandboxes) *crowd {
	s.t.Helper()
	c := nobody(s)
	c.eachAtOnce("up")
	for _, name := range c.names {
		c.detached[name] = s.detached(name, detachedScript(name))
		c.attached[name] = start(s.t, s.command("exec", name, "sh", "-c", attachedScript))
	}
	for _, name := range c.names {
		c.attached[name].prints("ready\n")
	}
	return c
}

// eachAtOnce runs a command on each of the sandboxes, all at once.
func (c *crowd) eachAtOnce(command string) {
	c.t.Helper()
	var all []*testProcess
	for _, name := range c.names {
		all = append(all, start(c.t, c.command(command, name)))
	}
	for _, p := range all {
		if got := p.wait(); got.code != 0 || got.stderr != "" {
			c.t.Errorf("%q: %+v", p.cmd.Args[3:], got)
		}
	}
}

// each calls f with the name of each sandbox, a few at a time.
func (c *crowd) each(f func(name string)) {
	c.t.Helper()
	var working sync.WaitGroup
	for part := range slices.Chunk(c.names, many/4) {
		working.Go(func() {
			for _, name := range part {
				f(name)
			}
		})
	}
	working.Wait()
}

// goesOn holds that the sandboxes are up and usable, what was attached has ended
// with all it had started, and what was detached goes on and can be followed.
func (c *crowd) goesOn(pids map[string]int) {
	c.t.Helper()
	c.each(func(name string) {
		if pid := c.pid(name); pid != pids[name] {
			c.t.Errorf("%s: its PID 1 was %d and is %d", name, pids[name], pid)
		}
		if got := c.exec(name, "echo", "usable"); got != (result{0, "usable\n", ""}) {
			c.t.Errorf("%s: %+v", name, got)
		}
		if got := c.sleeps(name); slices.Contains(got, "1025") || slices.Contains(got, "1026") {
			c.t.Errorf("%s: of what was attached there still is %q", name, got)
		}
		execs := c.execs(name)
		if e := execs[c.detached[name]]; len(execs) != 1 || e.Ended || len(e.Pids) == 0 {
			c.t.Errorf("%s: %+v", name, execs)
		}
	})
	c.each(func(name string) {
		c.exec(name, "touch", "go")
		got := run(c.t, c.command("attach", name, c.detached[name]))
		if want := (result{6, "from " + name + "\nwent\n", ""}); got != want {
			c.t.Errorf("%s: attach: %+v, want %+v", name, got, want)
		}
	})
}

// pids are those of the sandboxes' first processes.
func (c *crowd) pids() map[string]int {
	c.t.Helper()
	pids := map[string]int{}
	for _, name := range c.names {
		pids[name] = c.pid(name)
	}
	return pids
}

// gone holds that all can be removed, each by its name, and is.
func (c *crowd) gone() {
	c.t.Helper()
	if got := run(c.t, c.command(append([]string{"down"}, c.names...)...)); got != (result{}) {
		c.t.Errorf("down: %+v", got)
	}
	if left := c.state(); len(left) != 0 {
		c.t.Errorf("left in the state root: %q", left)
	}
}

// Whoever has started a command and is killed takes it along, and nothing else.
func TestSandboxesSurviveTheirCallers(t *testing.T) {
	c := newCrowd(newSandboxes(t))
	pids := c.pids()
	for _, p := range c.attached {
		p.kill()
	}
	c.goesOn(pids)
	c.gone()
}

// What is left of sandboxes whose agents were killed says so, and can be removed
// or replaced.
func TestSandboxesWhoseAgentsWereKilledAreToldAndRemoved(t *testing.T) {
	c := newCrowd(newSandboxes(t))
	for _, pid := range c.pids() {
		kill(t, pid, syscall.SIGKILL)
	}
	for name, p := range c.attached {
		if got := p.wait(); got.code != 137 || !strings.Contains(got.stderr, "from outside") {
			t.Errorf("%s: what was attached: %+v", name, got)
		}
	}
	c.each(func(name string) {
		for _, args := range [][]string{{"exec", name, "true"}, {"attach", name, c.detached[name]}} {
			if got := run(t, c.command(args...)); got.code != 125 || !strings.Contains(got.stderr, name+" is not running") {
				t.Errorf("%q: %+v", args, got)
			}
		}
	})
	// An agent has stopped when its processes have, which comes after its last word.
	eventually(t, "all are listed as stopped", func() bool { return strings.Count(c.oci("list").stdout, "stopped") == many })
	replaced := c.names[0]
	if got := run(t, c.command("up", replaced)); got != (result{0, replaced + "\n", ""}) {
		t.Errorf("up: %+v", got)
	}
	if c.sh(replaced, "ls") != "" {
		t.Error("the new one is the old one")
	}
	c.gone()
}

// called is a crowd that another program has made by a launcher.
func called(s *sandboxes, socket string) (*crowd, *testProcess) {
	s.t.Helper()
	c := nobody(s)
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	names, err := json.Marshal(c.names)
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), stageVariable+"="+stageCaller, callerSocket+"="+socket, callerNames+"="+string(names))
	caller := start(s.t, cmd)
	eventually(s.t, "the caller has started all", func() bool {
		if caller.ended() {
			s.t.Fatalf("the caller has ended: %+v", caller.wait())
		}
		return strings.HasSuffix(caller.stdout(), "\n")
	})
	decode(s.t, caller.stdout(), &c.detached)
	return c, caller
}

func socketOfTest(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "l") // short: a socket's path has 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "socket")
}

// A launcher that is killed takes along what is attached. The rest is taken up
// by the next, and by whoever else comes.
func TestSandboxesSurviveTheirLauncher(t *testing.T) {
	s := newSandboxes(t)
	socket := socketOfTest(t)
	first := s.launcher(socket)
	c, caller := called(s, socket)
	pids := c.pids()
	first.kill()
	if got := caller.wait(); got.code != 0 {
		t.Errorf("the caller: %+v", got)
	}
	lines := strings.Split(strings.TrimSpace(caller.stdout()), "\n")
	if len(lines) != many+1 {
		t.Fatalf("the caller says %q", lines)
	}
	for _, line := range lines[1:] {
		var said [3]string // status and error of the attached one, error of the next
		decode(t, line, &said)
		if said[0] == "exited" || said[0] == "" && said[1] == "<nil>" || !strings.Contains(said[2], "launcher") || !strings.Contains(said[2], "not available") {
			t.Errorf("the caller was told %q", said)
		}
	}
	second := s.launcher(socket)
	m, err := sandbox.NewManager(sandbox.ManagerConfig{Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	list, err := m.List(t.Context())
	if err != nil || len(list) != many {
		t.Errorf("%d sandboxes, %v", len(list), err)
	}
	box, err := m.Get(t.Context(), c.names[0])
	if err != nil {
		t.Fatal(err)
	}
	if r, err := box.Run(t.Context(), "echo usable"); err != nil || string(r.Stdout) != "usable\n" {
		t.Errorf("%+v, %v", r, err)
	}
	c.goesOn(pids)
	c.gone()
	interrupt(t, second.testProcess)
}

// A program that is killed takes along what it has attached.
func TestSandboxesSurviveTheCallersOfTheirLauncher(t *testing.T) {
	s := newSandboxes(t)
	socket := socketOfTest(t)
	launcher := s.launcher(socket)
	c, caller := called(s, socket)
	pids := c.pids()
	caller.kill()
	for _, name := range c.names {
		eventually(t, name+" is rid of what was attached", func() bool { return len(c.execs(name)) == 1 })
	}
	c.goesOn(pids)
	c.gone()
	interrupt(t, launcher.testProcess)
}

// A sandbox whose removal was killed before PID 1 is stopped for every command, and each error names the way out.
func TestASandboxWithAKilledDownIsStopped(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	cmd := s.command("down", "box")
	cmd.Args = append([]string{"strace", "-f", "-o", "/dev/null", "-e", "trace=pidfd_send_signal", "-e", "inject=pidfd_send_signal:signal=KILL:when=1", cmd.Path},
		cmd.Args[1:]...)
	var err error
	if cmd.Path, err = exec.LookPath("strace"); err != nil {
		t.Fatal(err)
	}
	if got := run(t, cmd); got.code != 128+9 {
		t.Fatalf("down was not killed: %+v", got)
	}
	var listed []struct{ ID, Status string }
	decode(t, s.oci("list", "--format", "json").stdout, &listed)
	if len(listed) != 1 || listed[0].Status != "stopped" {
		t.Errorf("list: %+v", listed)
	}
	for _, args := range []string{"exec box true", "stats box", "changes box", "cp box:/etc/hostname -"} {
		got := run(t, s.command(strings.Fields(args)...))
		if got.code == 0 || !strings.HasSuffix(got.stderr, "is not running: its removal has begun; run down again\n") {
			t.Errorf("%s: %+v", args, got)
		}
	}
	if got := run(t, s.command("down", "box")); got.code != 0 {
		t.Errorf("down again: %+v", got)
	}
	if left := s.state(); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}
