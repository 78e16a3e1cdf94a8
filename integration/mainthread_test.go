package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	ocibundle "github.com/sandbox-runtime/sandbox-runtime/integration/internal/bundle"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// headless is a container whose main thread has ended, and whose other thread runs. It is in the state
// root as "h".
type headless struct {
	*ociRuntime
	t   *testing.T
	pid int
}

func newHeadless(t *testing.T, changes ...func(*specs.Spec)) headless {
	t.Helper()
	r := ours(t)
	b := newHeadlessBundle(t, nil, changes...)
	out := filepath.Join(t.TempDir(), "out")
	f, err := os.Create(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := r.command("run", "--detach", "--bundle", b.dir, "h")
	cmd.Stdout, cmd.Stderr = f, f
	if got := run(t, cmd); got.code != 0 {
		t.Fatalf("run: status %d, %s", got.code, content(t, out))
	}
	eventually(t, "the main thread has ended", func() bool { return content(t, out) == "ready\n" })
	s := r.state("h")
	if s.Status != "running" || s.PID == 0 {
		t.Fatalf("state %+v", s)
	}
	return headless{r, t, s.PID}
}

func newHeadlessBundle(t *testing.T, args []string, changes ...func(*specs.Spec)) *bundle {
	t.Helper()
	root := newBusyboxRoot(t)
	if err := ocibundle.CopyProgram(testhost.Headless(t), filepath.Join(root, "bin/headless")); err != nil {
		t.Fatal(err)
	}
	return newBundle(t, append([]string{"headless"}, args...), append(changes, withRoot(root))...)
}

// isGone holds that no process of the container is left, and nothing of its state.
func (h headless) isGone() {
	h.t.Helper()
	if stat := processStat(h.pid); stat != "" && !strings.Contains(stat, ") Z ") {
		h.t.Errorf("it runs on: %s", stat)
	}
	if ids := h.ids(); len(ids) != 0 {
		h.t.Errorf("left in the state root: %q", ids)
	}
}

func TestContainerOutlivesItsMainThread(t *testing.T) {
	leavesNothing(t)
	h := newHeadless(t)
	if got := h.run("list").stdout; !strings.Contains(got, "running") {
		t.Errorf("list: %s", got)
	}
	for _, args := range [][]string{{"delete", "h"}, {"start", "h"}} {
		if got := run(t, h.command(args...)); got.code == 0 || !strings.Contains(got.stderr, "running") {
			t.Errorf("%q: %+v", args, got)
		}
	}
	if got := run(t, h.command("exec", "h", "true")); got.code != 255 || !strings.Contains(got.stderr, "main thread") {
		t.Errorf("exec: %+v", got)
	}
	h.run("events", "--stats", "h")
	h.run("update", "--pids-limit", "77", "h")
	h.run("kill", "h", "0")
	h.run("pause", "h")
	h.waitUntil("h", "paused")
	h.run("update", "--pids-limit", "78", "h")
	h.run("resume", "h")
	h.waitUntil("h", "running")
	h.run("kill", "--all", "h", "KILL")
	h.waitUntil("h", "stopped")
	h.run("delete", "h")
	h.isGone()
}

func TestDeleteForceEndsAContainerWithoutItsMainThread(t *testing.T) {
	for name, change := range map[string]func(*headless){
		"running": func(*headless) {},
		"paused":  func(h *headless) { h.run("pause", "h") },
		"killed":  func(h *headless) { h.run("kill", "h", "KILL") },
	} {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t)
			h := newHeadless(t)
			change(&h)
			h.run("delete", "--force", "h")
			h.isGone()
		})
	}
	t.Run("in the host's pid namespace", func(t *testing.T) {
		leavesNothing(t)
		h := newHeadless(t, withoutNamespace(specs.PIDNamespace))
		h.run("delete", "--force", "h")
		h.isGone()
	})
}

// A killed process of a paused container ends when the container is resumed, on v1. Nothing is wrong with its main thread.
func TestAKilledContainerDoesNotLackItsMainThread(t *testing.T) {
	leavesNothing(t)
	h := newHeadless(t)
	h.run("pause", "h")
	if process.IsKilled(h.pid) {
		t.Error("killed before the kill")
	}
	if err := unix.Kill(h.pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if !process.IsKilled(h.pid) {
		t.Error("not killed")
	}
	if got := run(t, h.command("exec", "h", "true")); got.code != 255 || !strings.Contains(got.stderr, "cannot exec in a ") {
		t.Errorf("exec: %+v", got)
	}
	h.run("delete", "--force", "h")
	h.isGone()
}

func TestSignalReachesAContainerWithoutItsMainThread(t *testing.T) {
	leavesNothing(t)
	r := ours(t)
	p := start(t, r.command("run", "--bundle", newHeadlessBundle(t, nil).dir, "h"))
	p.prints("ready\n")
	r.run("kill", "h", "TERM")
	if got := p.wait(); got.code != 7 {
		t.Errorf("got %+v", got)
	}
}

// A filter that kills a thread, not its process, kills the main thread of libcontainer's init, which has
// other threads.
func TestSeccompFilterThatKillsTheMainThread(t *testing.T) {
	killing := func(call string, args ...specs.LinuxSeccompArg) func(*specs.Spec) {
		return func(s *specs.Spec) {
			s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{
				{Names: []string{call}, Action: specs.ActKillThread, Args: args},
			}}
		}
	}
	for _, nnp := range []bool{false, true} {
		for call, status := range map[string]int{"execve": 159, "openat": 1, "close": 1} {
			name := call + map[bool]string{true: " without new privileges"}[nnp]
			t.Run(name, func(t *testing.T) {
				leavesNothing(t)
				r := ours(t)
				b := newBundle(t, []string{"true"}, killing(call), func(s *specs.Spec) { s.Process.NoNewPrivileges = nnp })
				if got := run(t, r.command("run", "--bundle", b.dir, "attached")); got.code != status {
					t.Errorf("run: %+v", got)
				}
				r.create(b, "held")
				_ = run(t, r.command("start", "held"))
				r.waitUntil("held", "stopped")
				r.run("delete", "held")
			})
		}
	}
	t.Run("of an exec", func(t *testing.T) {
		leavesNothing(t)
		r := ours(t)
		b := newBundle(t, []string{"sleep", "1000"}, killing("setuid", specs.LinuxSeccompArg{Index: 0, Value: 5, Op: specs.OpEqualTo}))
		r.run("run", "--detach", "--bundle", b.dir, "c")
		if got := run(t, r.command("exec", "--user", "5", "c", "true")); got.code != 159 {
			t.Errorf("exec: %+v", got)
		}
		r.run("exec", "c", "true")
		r.run("delete", "--force", "c")
	})
}

func TestCommandInASandboxOutlivesItsMainThread(t *testing.T) {
	s := newSandboxes(t)
	program := testhost.Headless(t) + ":/mnt/headless"
	want := result{code: 7, stdout: "ready\n"}
	for _, pid := range []string{"private", "host"} {
		flags := []string{"--pid", pid, "--bind", program}
		if got := s.do(append(flags, "--", "/mnt/headless", "once")...); got.code != want.code || got.stdout != want.stdout {
			t.Errorf("do --pid %s: %+v", pid, got)
		}
		inLongerTime(t, 200*time.Millisecond, func(timeout string) bool {
			o := s.json(append(flags, "--timeout", timeout, "--", "/mnt/headless")...)
			return o.Status == "timed_out" && o.Stdout == "ready\n"
		})
		s.up(pid, flags...)
		id := strings.TrimSpace(s.exec("--detach", pid, "/mnt/headless").stdout)
		eventually(t, "its main thread has ended", func() bool { return processState(s.first(pid, id)) == "Z" })
		if e := s.execs(pid)[id]; e.Ended || len(e.Pids) != 1 || len(e.Args) != 1 || e.Args[0] != "/mnt/headless" {
			t.Errorf("--pid %s: %+v", pid, e)
		}
		s.downIfUp(pid)
	}
}
