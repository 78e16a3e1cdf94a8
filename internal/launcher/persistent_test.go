package launcher

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/jobs"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// createUp makes a sandbox that stays until it is removed, at the latest when the test
// ends.
func createUp(t *testing.T, l *Launcher, name string, c spec.Config) *Sandbox {
	t.Helper()
	sb, err := l.Create(t.Context(), protocol.Create{Name: name, Config: c}, Sources{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sb.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return sb
}

// eventually waits for what comes about by itself.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	testhost.Eventually(t, what, is)
}

// killInit ends a sandbox from outside.
func killInit(t *testing.T, sb *Sandbox) {
	t.Helper()
	init := sb.session.Init()
	if err := unix.Kill(init.Pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "PID 1 ends", func() bool { return !init.Lives() })
}

// An output is what a command wrote.
type output struct{ stdout, stderr string }

// startPiped starts a command whose output is read by the test.
func startPiped(t *testing.T, sb *Sandbox, c spec.Command) (*jobs.Process, func() output) {
	t.Helper()
	p, read, err := tryPiped(t, sb, c)
	if err != nil {
		t.Fatal(err)
	}
	return p, read
}

func tryPiped(t *testing.T, sb *Sandbox, c spec.Command) (*jobs.Process, func() output, error) {
	t.Helper()
	var files [3]*os.File
	var readers [3]*os.File
	for i := 1; i < 3; i++ {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		files[i], readers[i] = w, r
		t.Cleanup(func() { r.Close() }) // not before, as the command may write, whether or not it is read
	}
	p, err := sb.Start(t.Context(), c, files)
	if err == nil {
		if err = p.Started(t.Context()); err != nil {
			err = errors.Join(err, p.Close())
		}
	}
	for i := 1; i < 3; i++ {
		files[i].Close()
	}
	if err != nil {
		readers[1].Close()
		readers[2].Close()
		return nil, nil, err
	}
	t.Cleanup(func() { p.Close() })
	return p, func() output {
		var text [3]bytes.Buffer
		for i := 1; i < 3; i++ {
			io.Copy(&text[i], readers[i])
			readers[i].Close()
		}
		return output{text[1].String(), text[2].String()}
	}, nil
}

// sh runs a shell line to its end.
func sh(t *testing.T, sb *Sandbox, line string) (spec.Result, output) {
	t.Helper()
	p, read := startPiped(t, sb, spec.Command{Args: []string{"sh", "-c", line}})
	r, err := p.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r, read()
}

func TestASandboxKeepsItsStateBetweenExecs(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "box", spec.Config{})
	if r, _ := sh(t, sb, "echo one > f; (exit 3)"); r.ExitCode != 3 || r.ID != "box" || r.Exec == "" {
		t.Errorf("got %+v", r)
	}
	for range 3 {
		if r, out := sh(t, sb, "cat f"); out.stdout != "one\n" || !r.OK() {
			t.Errorf("got %q, %+v", out, r)
		}
	}
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	checkNothingLeft(t, l)
}

// A second launcher stands for another process.
func TestASandboxIsFoundByItsName(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "box", spec.Config{Env: map[string]string{"A": "b"}})
	sb.Release()
	other, err := New(Dirs{State: l.State, Data: l.Data})
	if err != nil {
		t.Fatal(err)
	}
	again, err := other.Open(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	defer again.Release()
	if r, out := sh(t, again, "echo $A"); out.stdout != "b\n" || !r.OK() {
		t.Errorf("got %q, %+v", out, r)
	}
	info, err := again.Info()
	if err != nil || info.State != spec.StateRunning || info.ID != "box" || info.Pid == 0 || info.Config.Env["A"] != "b" {
		t.Errorf("info %+v, %v", info, err)
	}
	if none, err := other.List(t.Context(), func(uint32) bool { return false }); err != nil || none == nil || len(none) > 0 {
		t.Errorf("of nobody: %v, %v", none, err)
	}
	list, err := other.List(t.Context(), nil)
	if err != nil || len(list) != 1 || list[0].ID != "box" {
		t.Errorf("list %+v, %v", list, err)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	checkNothingLeft(t, l)
}

func TestExecsAtOnceHaveTheirOwnCounts(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	big, _ := startPiped(t, sb, spec.Command{Args: []string{"sh", "-c", "head -c 64m /dev/zero > big; i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"}})
	var small []*jobs.Process
	for range 8 {
		p, _ := startPiped(t, sb, spec.Command{Args: []string{"true"}})
		small = append(small, p)
	}
	r, err := big.Wait(t.Context())
	if err != nil || !r.OK() || r.PeakMemory < 64<<20 || r.CPU < 50*time.Millisecond {
		t.Errorf("the big one: %+v, %v", r, err)
	}
	for _, p := range small {
		s, err := p.Wait(t.Context())
		if err != nil || !s.OK() || s.PeakMemory == 0 || s.PeakMemory > 16<<20 || s.CPU <= 0 || s.CPU > r.CPU/2 || s.Exec == r.Exec {
			t.Errorf("a small one: %+v, %v", s, err)
		}
	}
}

func TestTimeoutOfOneExecLeavesTheOthers(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	var others []*jobs.Process
	for range 2 {
		p, _ := startPiped(t, sb, spec.Command{Args: []string{"sleep", "1000"}})
		others = append(others, p)
	}
	// Its children leave the session, and their parent.
	const line = `(setsid sleep 1001 &); (setsid sh -c 'sleep 1002 & sleep 1002' &); trap "" TERM INT; echo on; sleep 1003`
	for timeout, on := 300*time.Millisecond, false; !on; timeout *= 4 { // which is too short for a slow host to get far
		p, read := startPiped(t, sb, spec.Command{Args: []string{"sh", "-c", line}, Timeout: spec.Duration(timeout)})
		r, err := p.Wait(t.Context())
		if err != nil || r.Status != spec.StatusTimedOut || r.ExitCode != spec.ExitTimedOut || !strings.Contains(r.Reason, timeout.String()) {
			t.Fatalf("got %+v, %v", r, err)
		}
		out := read().stdout // nobody has the pipe any more
		if on = out == "on\n"; !on && (out != "" || timeout > time.Minute) {
			t.Fatalf("output %q after %v", out, timeout)
		}
	}
	r, out := sh(t, sb, "ps ax -o args")
	if !r.OK() || regexp.MustCompile("sleep 100[123]").MatchString(out.stdout) || strings.Count(out.stdout, "sleep 1000") != 2 {
		t.Errorf("%+v: %s", r, out.stdout)
	}
	for _, other := range others {
		if err := other.Signal(unix.SIGTERM, false); err != nil {
			t.Error(err)
		}
		if r, err := other.Wait(t.Context()); err != nil || r.Signal != "SIGTERM" {
			t.Errorf("got %+v, %v", r, err)
		}
	}
}

func TestWhatACommandLeavesRunningEndsWithIt(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	r, _ := sh(t, sb, "(setsid sleep 1001 &) ; exit 0")
	if !r.OK() || len(r.Violations) > 0 {
		t.Errorf("got %+v", r)
	}
	if _, out := sh(t, sb, "ps ax -o args"); strings.Contains(out.stdout, "sleep 1001") {
		t.Errorf("it is still there:\n%s", out.stdout)
	}
}

func TestCancelledWaitEndsThatExec(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	for _, after := range []time.Duration{50 * time.Millisecond, 0} {
		p, _ := startPiped(t, sb, spec.Command{Args: []string{"sh", "-c", "sleep 1000 & sleep 1000"}})
		ctx, cancel := context.WithCancel(t.Context())
		if after == 0 {
			cancel()
		} else {
			time.AfterFunc(after, cancel)
		}
		r, err := p.Wait(ctx)
		if err != nil || r.Status != spec.StatusSignaled || !strings.Contains(r.Reason, "gave up") {
			t.Errorf("got %+v, %v", r, err)
		}
	}
	if _, out := sh(t, sb, "ps ax -o args"); strings.Contains(out.stdout, "sleep 1000") {
		t.Errorf("it is still there:\n%s", out.stdout)
	}
}

func TestExecInASandboxThatIsGoneSaysSo(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "box", spec.Config{})
	p, _ := startPiped(t, sb, spec.Command{Args: []string{"sleep", "1000"}})
	killInit(t, sb)
	if r, err := p.Wait(t.Context()); err != nil || r.Status != spec.StatusLost || r.ExitCode != 137 {
		t.Errorf("what ran: %+v, %v", r, err)
	}
	if _, _, err := tryPiped(t, sb, spec.Command{Args: []string{"true"}}); !errors.Is(err, fault.ErrNotRunning) {
		t.Errorf("start: %v", err)
	}
	if _, err := l.Open(t.Context(), "box"); !errors.Is(err, fault.ErrNotRunning) {
		t.Errorf("open: %v", err)
	}
	if i, err := l.Info(t.Context(), "box"); err != nil || i.State != spec.StateStopped || i.Pid != 0 {
		t.Errorf("info: %+v, %v", i, err)
	}
	if err := l.Remove(t.Context(), "box"); err != nil {
		t.Error(err)
	}
	if _, _, err := tryPiped(t, sb, spec.Command{Args: []string{"true"}}); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("start, removed: %v", err)
	}
	if _, err := l.Open(t.Context(), "box"); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("open, removed: %v", err)
	}
	if err := l.Remove(t.Context(), "box"); err != nil {
		t.Errorf("remove again: %v", err)
	}
	checkNothingLeft(t, l)
}
