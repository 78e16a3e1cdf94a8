package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

func TestIsolatedCommandsAreIsolated(t *testing.T) {
	sb := create(t, newIsolated(t), sandbox.Config{})
	r, err := sb.Run(t.Context(), "pwd; id -u; echo again > /dev/stdout; readlink /proc/self/fd/0")
	if err != nil || string(r.Stdout) != "/workspace\n1000\nagain\n/dev/null\n" || r.Isolation != sandbox.IsolationFull {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestIsolatedMemoryIsBounded(t *testing.T) {
	sb := create(t, newIsolated(t), sandbox.Config{Limits: sandbox.Limits{Memory: 64 << 20}})
	r, err := sb.Run(t.Context(), "exec tail /dev/zero")
	if err != nil || r.Status != sandbox.StatusOOMKilled || r.ExitCode != 137 || r.Reason == "" {
		t.Errorf("got %+v, %v", r, err)
	}
	if stats, err := sb.Stats(t.Context()); err != nil || stats.CPU <= 0 || stats.MemoryPeak < 32<<20 || stats.OOMKills < 1 {
		t.Errorf("got %+v, %v", stats, err)
	}
}

// A timeout and a cancelled context end a command with all it has started, and
// nothing else.
func TestIsolatedKillHitsOneCommand(t *testing.T) {
	testhost.Concurrent(t)
	sb := create(t, newIsolated(t), sandbox.Config{})
	other, err := sb.Start(t.Context(), sandbox.Command{Args: []string{"sh", "-c", "read x; exit 7"}, Stdin: waitReader{t.Context()}})
	if err != nil {
		t.Fatal(err)
	}
	daemon := "(setsid sh -c 'while :; do touch /tmp/alive; sleep 0.02; done' &) ; sleep 60"
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		if r, err := sb.Run(t.Context(), "until [ -e /tmp/alive ]; do sleep 0.02; done"); err != nil || !r.OK() {
			t.Errorf("the daemon: %+v, %v", r, err)
		}
	}()
	if r, err := sb.Run(ctx, daemon); err != nil || r.Status != sandbox.StatusSignaled || !strings.Contains(r.Reason, "gave up") {
		t.Errorf("got %+v, %v", r, err)
	}
	r, err := sb.Run(t.Context(), "ls /tmp/alive && rm /tmp/alive; sleep 0.3; ls /tmp/alive")
	if err != nil || string(r.Stdout) != "/tmp/alive\n" || r.ExitCode == 0 {
		t.Errorf("the daemon lives: %+v, %v", r, err)
	}
	if err := other.Kill(); err != nil {
		t.Fatal(err)
	}
	if r, err := other.Wait(); err != nil || r.Signal != "SIGKILL" {
		t.Errorf("the other one: %+v, %v", r, err)
	}
}

// waitReader has nothing to read until its context is done.
type waitReader struct{ ctx context.Context }

func (w waitReader) Read([]byte) (int, error) { <-w.ctx.Done(); return 0, w.ctx.Err() }

// Two managers are two launchers: what one has made is the other's too.
func TestIsolatedDetachedIsAttachedToFromElsewhere(t *testing.T) {
	here := newIsolated(t)
	sb := create(t, here, sandbox.Config{})
	p, err := sb.Start(t.Context(), sandbox.Command{
		Args: []string{"sh", "-c", "echo first; while [ ! -e /tmp/go ]; do sleep 0.02; done; echo last; echo err >&2; exit 6"}, Detached: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	id := p.ID()
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	elsewhere, err := newIsolated(t).Get(t.Context(), sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	execs, err := elsewhere.Execs(t.Context())
	if err != nil || len(execs) != 1 || execs[0].ID != id || !execs[0].Detached || execs[0].Ended {
		t.Errorf("got %+v, %v", execs, err)
	}
	var out syncBuffer
	again, err := elsewhere.Attach(t.Context(), id, &out, nil)
	if err != nil {
		t.Fatal(err)
	}
	out.waitFor(t, "first\n")
	if r, err := elsewhere.Run(t.Context(), "touch /tmp/go"); err != nil || !r.OK() {
		t.Fatalf("got %+v, %v", r, err)
	}
	r, err := again.Wait()
	if err != nil || r.ExitCode != 6 || string(r.Stderr) != "err\n" {
		t.Errorf("got %+v, %v", r, err)
	}
	out.waitFor(t, "first\nlast\n")
	if _, err := elsewhere.Attach(t.Context(), id, nil, nil); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("its result is taken: %v", err)
	}
}

// A sandbox that is asked for by who works in another is its sibling: neither
// reaches the other's processes, files, sockets or network.
func TestIsolatedSiblingsHaveNothingOfEachOther(t *testing.T) {
	m := newIsolated(t)
	pair := [2]*sandbox.Sandbox{create(t, m, sandbox.Config{}), create(t, m, sandbox.Config{})}
	const serve = `import os, socket, sys, time
open("/tmp/secret", "w").write("x"); open("/dev/shm/secret", "w").write("x"); open("/workspace/secret", "w").write("x")
a = socket.socket(socket.AF_UNIX); a.bind("\0secret"); a.listen()
b = socket.socket(socket.AF_UNIX); b.bind("/tmp/secret.sock"); b.listen()
c = socket.socket(); c.bind(("127.0.0.1", 4321)); c.listen()
print("ready", flush=True); time.sleep(600)`
	const reach = `import os, socket
def tried(what, f):
    try: f()
    except OSError: return
    print(what)
def connect(family, address):
    socket.socket(family).connect(address)
for p in ["/tmp/secret", "/dev/shm/secret", "/workspace/secret", "/tmp/secret.sock"]: tried(p, lambda: os.stat(p))
tried("abstract socket", lambda: connect(socket.AF_UNIX, "\0secret"))
tried("loopback", lambda: connect(socket.AF_INET, ("127.0.0.1", 4321)))
for p in os.listdir("/proc"):
    if p.isdigit() and b"secret" in open(f"/proc/{p}/cmdline", "rb").read() and int(p) != os.getpid(): print("process", p)`
	// The look works where there is something to see.
	for i, own := range pair {
		var out syncBuffer
		p, err := own.Start(t.Context(), sandbox.Command{Args: []string{"python3", "-c", serve}, Stdout: &out})
		if err != nil {
			t.Fatal(err)
		}
		out.waitFor(t, "ready\n")
		if r, err := own.Exec(t.Context(), command("python3", "-c", reach)); err != nil || strings.Count(string(r.Stdout), "\n") != 7 {
			t.Errorf("its own: %s%s, %v", r.Stdout, r.Stderr, err)
		}
		if r, err := pair[1-i].Exec(t.Context(), command("python3", "-c", reach)); err != nil || !r.OK() || len(r.Stdout) != 0 {
			t.Errorf("the other's: %s%s, %v", r.Stdout, r.Stderr, err)
		}
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Wait(); err != nil {
			t.Fatal(err)
		}
		clean := "rm -r /tmp/secret* /dev/shm/secret /workspace/secret"
		if r, err := own.Run(t.Context(), clean); err != nil || !r.OK() {
			t.Fatalf("got %+v, %v", r, err)
		}
	}
}

// SIGKILL of PID 1: the next call says so, Up replaces it, its id removes it.
func TestIsolatedStoppedIsReplacedOrRemoved(t *testing.T) {
	m := newIsolated(t)
	sb, err := m.Up(t.Context(), "phoenix", sandbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Remove(context.Background(), "phoenix") })
	info, err := sb.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(info.Pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for info.State != sandbox.StateStopped {
		if info, err = sb.Info(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := sb.Run(t.Context(), "true"); !errors.Is(err, sandbox.ErrNotRunning) {
		t.Errorf("got %+v, %v", r, err)
	}
	again, err := m.Up(t.Context(), "phoenix", sandbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := again.Run(t.Context(), "true"); err != nil || !r.OK() {
		t.Errorf("got %+v, %v", r, err)
	}
}

// A launcher that is killed takes what is attached with it; the sandbox stays,
// and the Manager has another launcher at the next call.
func TestIsolatedLauncherThatDiesIsReplaced(t *testing.T) {
	m := newIsolated(t)
	sb := create(t, m, sandbox.Config{})
	p, err := sb.Start(t.Context(), command("sleep", "600"))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Started(t.Context()); err != nil {
		t.Fatal(err)
	}
	killChildren(t, "launcher")
	if r, err := p.Wait(); !errors.Is(err, sandbox.ErrUnavailable) || !strings.Contains(err.Error(), sb.ID()) {
		t.Errorf("got %+v, %v", r, err)
	}
	if r, err := sb.Run(t.Context(), "pgrep -x sleep; echo alive"); err != nil || string(r.Stdout) != "alive\n" {
		t.Errorf("got %+v, %v", r, err)
	}
}

// killChildren kills those children of this process that run the test's program
// with this argument.
func killChildren(t *testing.T, argument string) {
	t.Helper()
	children, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		more, _ := os.ReadFile("/proc/self/task/" + task.Name() + "/children")
		children = append(append(children, ' '), more...)
	}
	killed := 0
	for _, pid := range strings.Fields(string(children)) {
		line, _ := os.ReadFile("/proc/" + pid + "/cmdline")
		if !strings.HasPrefix(string(line), world.program+"\x00") || !strings.Contains(string(line), "\x00"+argument+"\x00") {
			continue
		}
		var number int
		fmt.Sscan(pid, &number)
		if err := unix.Kill(number, unix.SIGKILL); err == nil {
			killed++
		}
	}
	if killed == 0 {
		t.Fatal("no launcher found")
	}
}

func TestIsolatedTiedEndsWithItsManager(t *testing.T) {
	m := newIsolated(t)
	other := newIsolated(t)
	sb, err := m.Create(t.Context(), sandbox.Config{}, sandbox.Tied())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Get(t.Context(), sb.ID()); err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	testhost.Eventually(t, "it is gone", func() bool {
		_, err := other.Get(t.Context(), sb.ID())
		return errors.Is(err, sandbox.ErrNotFound)
	})
}
