package sandbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

func TestIsolatedRunsInItsWorkspace(t *testing.T) {
	workspace := t.TempDir()
	sb := create(t, newIsolated(t), sandbox.Config{Workspace: workspace, Env: map[string]string{"A": "b"}})
	r, err := sb.Exec(t.Context(), sandbox.Command{
		Args: []string{"sh", "-c", "pwd; id -u; echo $A $C > f; exit 5"}, Env: map[string]string{"C": "d"},
	})
	if err != nil || r.ExitCode != 5 || string(r.Stdout) != "/workspace\n1000\n" || r.Isolation != sandbox.IsolationFull || r.ID != sb.ID() {
		t.Errorf("got %+v, %v", r, err)
	}
	if text, err := os.ReadFile(workspace + "/f"); err != nil || string(text) != "b d\n" {
		t.Errorf("got %q, %v", text, err)
	}
}

func TestIsolatedStreamsAreLikeLocalOnes(t *testing.T) {
	sb := create(t, newIsolated(t), sandbox.Config{})
	r, err := sb.Run(t.Context(), "head -c 3000000 /dev/zero; echo err >&2")
	if err != nil || len(r.Stdout) != 3000000 || string(r.Stderr) != "err\n" || r.StdoutTruncated {
		t.Errorf("got %d bytes, %q, %v", len(r.Stdout), r.Stderr, err)
	}
	var out bytes.Buffer
	input := strings.Repeat("line\n", 100_000)
	r, err = sb.Exec(t.Context(), sandbox.Command{Args: []string{"cat"}, Stdin: strings.NewReader(input), Stdout: &out, Stderr: &out})
	if err != nil || !r.OK() || out.String() != input {
		t.Errorf("got %+v with %d bytes, %v", r, out.Len(), err)
	}
	r, err = sb.Exec(t.Context(), sandbox.Command{Args: []string{"sh", "-c", "echo again > /dev/stdout; readlink /proc/self/fd/0"}})
	if err != nil || string(r.Stdout) != "again\n/dev/null\n" {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestIsolatedEndingsAreResults(t *testing.T) {
	sb := create(t, newIsolated(t), sandbox.Config{Limits: sandbox.Limits{Memory: 64 << 20}})
	for name, test := range map[string]struct {
		c      sandbox.Command
		status sandbox.Status
		code   int
	}{
		"not found":      {command("no-such-command"), sandbox.StatusError, -1},
		"not executable": {command("/etc/passwd"), sandbox.StatusError, -1},
		"signal":         {command("sh", "-c", "kill -TERM $$"), sandbox.StatusSignaled, 143},
		"timeout":        {sandbox.Command{Args: []string{"sleep", "60"}, Timeout: 100 * time.Millisecond}, sandbox.StatusTimedOut, 124},
		"memory":         {command("sh", "-c", "exec tail /dev/zero"), sandbox.StatusOOMKilled, 137},
		"exit":           {command("sh", "-c", "exit 3"), sandbox.StatusExited, 3},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := sb.Exec(t.Context(), test.c)
			if err != nil || r.Status != test.status || r.ExitCode != test.code || r.Reason == "" || r.ID != sb.ID() {
				t.Errorf("got %+v, %v", r, err)
			}
		})
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

func TestIsolatedTerminal(t *testing.T) {
	sb := create(t, newIsolated(t), sandbox.Config{})
	var out syncBuffer
	in, typed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer typed.Close()
	p, err := sb.Start(t.Context(), sandbox.Command{
		Args: []string{"sh", "-c", "stty -echo; stty size; read x; stty size; exit 4"}, Terminal: &sandbox.Winsize{Rows: 5, Columns: 70},
		Stdin: in, Stdout: &out,
	})
	if err != nil {
		t.Fatal(err)
	}
	out.waitFor(t, "5 70\r\n")
	if err := p.Resize(sandbox.Winsize{Rows: 6, Columns: 80}); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(typed)
	if r, err := p.Wait(); err != nil || r.ExitCode != 4 {
		t.Errorf("got %+v, %v", r, err)
	}
	out.waitFor(t, "5 70\r\n6 80\r\n")
}

// A reader's end is that of the input on a terminal too, also where no line ends
// there.
func TestIsolatedTerminalHasAnEndOfInput(t *testing.T) {
	sb := create(t, newIsolated(t), sandbox.Config{})
	for _, input := range []string{"", "line\n", "half", strings.Repeat("line\n", 5000)} {
		r, err := sb.Exec(t.Context(), sandbox.Command{
			Args: []string{"sh", "-c", "stty -echo; wc -c"}, Terminal: &sandbox.Winsize{Rows: 5, Columns: 70},
			Stdin: strings.NewReader(input), Timeout: time.Minute,
		})
		if want := fmt.Sprintf("%d\r\n", len(input)); err != nil || !r.OK() || !strings.HasSuffix(string(r.Stdout), want) {
			t.Errorf("%.10q, %d: got %+v, %v", input, len(input), r, err)
		}
	}
}

func TestIsolatedCommandOfAManagerThatIsClosed(t *testing.T) {
	m := newIsolated(t)
	sb, err := m.Create(t.Context(), sandbox.Config{}, sandbox.Tied())
	if err != nil {
		t.Fatal(err)
	}
	p, err := sb.Start(t.Context(), command("sleep", "600"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Started(t.Context()), m.Close()); err != nil {
		t.Fatal(err)
	}
	// The launcher's last word may have come before the end of the connection.
	r, err := p.Wait()
	told := err == nil && r.Status == sandbox.StatusSignaled && (r.Signal == "SIGTERM" || r.Signal == "SIGKILL")
	if !told && (!errors.Is(err, sandbox.ErrClosed) || !strings.Contains(err.Error(), sb.ID())) {
		t.Errorf("got %+v, %v", r, err)
	}
}

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

func TestIsolatedPauseStatsUpdateExecs(t *testing.T) {
	sb := create(t, newIsolated(t), sandbox.Config{})
	ctx := t.Context()
	if err := sb.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	if info, err := sb.Info(ctx); err != nil || info.State != sandbox.StatePaused {
		t.Errorf("got %+v, %v", info, err)
	}
	if r, err := sb.Run(ctx, "true"); !errors.Is(err, sandbox.ErrPaused) {
		t.Errorf("got %+v, %v", r, err)
	}
	if err := sb.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	if err := sb.Update(ctx, sandbox.Limits{Memory: 64 << 20}); err != nil {
		t.Fatal(err)
	}
	if r, err := sb.Run(ctx, "exec tail /dev/zero"); err != nil || r.Status != sandbox.StatusOOMKilled {
		t.Errorf("got %+v, %v", r, err)
	}
	if err := sb.Update(ctx, sandbox.Limits{Memory: 1}); err == nil {
		t.Error("a limit of one byte was taken")
	}
	if stats, err := sb.Stats(ctx); err != nil || stats.CPU <= 0 || stats.MemoryPeak < 32<<20 || stats.OOMKills < 1 {
		t.Errorf("got %+v, %v", stats, err)
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

func TestIsolatedManyAtOnce(t *testing.T) {
	testhost.Concurrent(t)
	sb := create(t, newIsolated(t), sandbox.Config{})
	var together sync.WaitGroup
	for n := range 32 {
		together.Go(func() {
			r, err := sb.Run(t.Context(), fmt.Sprintf("echo %d; exit %d", n, n))
			if err != nil || r.ExitCode != n || string(r.Stdout) != fmt.Sprintln(n) {
				t.Errorf("%d: got %+v, %v", n, r, err)
			}
		})
	}
	together.Wait()
}

// Started returns while another call waits for the end.
func TestIsolatedStartedBesideWait(t *testing.T) {
	testhost.Concurrent(t)
	sb := create(t, newIsolated(t), sandbox.Config{})
	p, err := sb.Start(t.Context(), command("sleep", "1000"))
	if err != nil {
		t.Fatal(err)
	}
	waited := make(chan error)
	go func() {
		_, err := p.Wait()
		waited <- err
	}()
	time.Sleep(50 * time.Millisecond) // Wait receives the answers now
	ctx, cancel := context.WithTimeout(t.Context(), testhost.Patience)
	defer cancel()
	if err := p.Started(ctx); err != nil {
		t.Error(err)
	}
	if err := errors.Join(p.Kill(), <-waited); err != nil {
		t.Error(err)
	}
}

func TestIsolatedGoneIsSaid(t *testing.T) {
	m := newIsolated(t)
	sb := create(t, m, sandbox.Config{}, sandbox.Named("goner"))
	p, err := sb.Start(t.Context(), command("sleep", "60"))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Started(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := m.Remove(t.Context(), "goner"); err != nil {
		t.Fatal(err)
	}
	if r, err := p.Wait(); err == nil && r.Status != sandbox.StatusLost {
		t.Errorf("got %+v", r)
	}
	if r, err := sb.Run(t.Context(), "true"); !errors.Is(err, sandbox.ErrNotFound) || !strings.Contains(err.Error(), "goner") {
		t.Errorf("got %+v, %v", r, err)
	}
	if _, err := m.Get(t.Context(), "goner"); !errors.Is(err, sandbox.ErrNotFound) || !strings.Contains(err.Error(), "goner") {
		t.Errorf("got %v", err)
	}
	if err := m.Remove(t.Context(), "goner"); err != nil {
		t.Error(err)
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

func TestIsolatedCreateThatIsGivenUpLeavesNothing(t *testing.T) {
	m := newIsolated(t)
	for _, after := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		if sb, err := m.Create(ctx, sandbox.Config{}); err == nil {
			sb.Close()
		} else if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		cancel()
	}
	testhost.Eventually(t, "nothing is left", func() bool {
		infos, err := m.List(t.Context())
		return err == nil && len(infos) == 0
	})
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

func TestIsolatedEvents(t *testing.T) {
	m := newIsolated(t)
	events, err := m.Events(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	sb := create(t, m, sandbox.Config{})
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	var seen []sandbox.EventType
	for len(seen) < 2 {
		ctx, cancel := context.WithTimeout(t.Context(), testhost.Patience)
		e, err := events.Next(ctx)
		cancel()
		if err != nil {
			t.Fatalf("after %v: %v", seen, err)
		}
		if e.ID == sb.ID() && e.Type != sandbox.EventDied {
			seen = append(seen, e.Type)
		}
	}
	if seen[0] != sandbox.EventCreated || seen[1] != sandbox.EventRemoved {
		t.Errorf("got %v", seen)
	}
}
