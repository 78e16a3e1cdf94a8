package sandbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox/sandboxtest"
)

func TestRunHasATimeout(t *testing.T) {
	fake := &sandboxtest.Fake{}
	m := newFake(t, fake)
	for _, config := range []sandbox.Config{{}, {Timeout: sandbox.Duration(time.Hour)}} {
		if _, err := create(t, m, config).Run(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
	}
	asked := fake.Commands()
	if asked[0].Timeout != sandbox.RunTimeout || asked[1].Timeout != 0 {
		t.Errorf("got %s, %s", asked[0].Timeout, asked[1].Timeout)
	}
}

func TestMistakesInACommandAreErrors(t *testing.T) {
	fake := &sandboxtest.Fake{}
	sb := create(t, newFake(t, fake), sandbox.Config{})
	args := []string{"true"}
	for name, c := range map[string]sandbox.Command{
		"no program":       {},
		"empty program":    {Args: []string{""}},
		"NUL in argument":  {Args: []string{"true", "a\x00b"}},
		"NUL in directory": {Args: args, Cwd: "/\x00"},
		"NUL in variable":  {Args: args, Env: map[string]string{"A": "\x00"}},
		"= in name":        {Args: args, Env: map[string]string{"A=B": ""}},
		"empty name":       {Args: args, Env: map[string]string{"": "x"}},
		"relative cwd":     {Args: args, Cwd: "x"},
		"negative timeout": {Args: args, Timeout: -1},
		"negative limit":   {Args: args, OutputLimit: -1},
		"the agent's user": {Args: args, User: &sandbox.User{UID: 65535}},
		"terminal, stderr": {Args: args, Terminal: &sandbox.Winsize{}, Stderr: os.Stderr},
		"detached, stdin":  {Args: args, Detached: true, Stdin: os.Stdin},
		"detached, stdout": {Args: args, Detached: true, Stdout: os.Stdout},
	} {
		t.Run(name, func(t *testing.T) {
			var wrong *sandbox.ConfigError
			if _, err := sb.Start(t.Context(), c); !errors.As(err, &wrong) {
				t.Errorf("Start: %v", err)
			}
			if _, err := sb.Exec(t.Context(), c); !errors.As(err, &wrong) {
				t.Errorf("Exec: %v", err)
			}
		})
	}
	if len(fake.Commands()) != 0 {
		t.Errorf("%v were asked for", fake.Commands())
	}
	if _, err := sb.Exec(t.Context(), sandbox.Command{Args: args, Detached: true}); err == nil {
		t.Error("a detached command was waited for")
	}
}

func TestExecKeepsEachStream(t *testing.T) {
	sb := create(t, newLocal(t), sandbox.Config{})
	for _, pause := range []string{"", "sleep 0.05;"} { // read at the end, and by goroutines
		r, err := sb.Run(t.Context(), "echo out; "+pause+" echo err >&2")
		if err != nil || string(r.Stdout) != "out\n" || string(r.Stderr) != "err\n" {
			t.Errorf("%q: got %+v, %v", pause, r, err)
		}
	}
	var out bytes.Buffer
	r, err := sb.Exec(t.Context(), sandbox.Command{Args: []string{"sh", "-c", "echo out; echo err >&2"}, Stdout: &out})
	if err != nil || r.Stdout != nil || out.String() != "out\n" || string(r.Stderr) != "err\n" {
		t.Errorf("got %+v, %q, %v", r, out.String(), err)
	}
}

func TestExecHasNoInput(t *testing.T) {
	sb := create(t, newLocal(t), sandbox.Config{})
	r, err := sb.Run(t.Context(), "cat; echo end")
	if err != nil || string(r.Stdout) != "end\n" {
		t.Errorf("got %+v, %v", r, err)
	}
}

// More than a pipe holds goes through, and more than the limit is taken and
// dropped: the command neither stops nor fails.
func TestOutputIsKeptUpToTheLimit(t *testing.T) {
	sb := create(t, newLocal(t), sandbox.Config{})
	for _, test := range []struct {
		written, limit, kept int64
	}{
		{0, 0, 0}, {10, 10, 10}, {11, 10, 10}, {1 << 20, 0, 1 << 20}, {1 << 30, 0, sandbox.OutputLimit}, {1 << 20, 100, 100},
	} {
		r, err := sb.Exec(t.Context(), sandbox.Command{
			Args: []string{"sh", "-c", fmt.Sprintf("head -c %d /dev/zero && echo all written >&2", test.written)}, OutputLimit: test.limit,
		})
		if err != nil || !r.OK() || int64(len(r.Stdout)) != test.kept || r.StdoutTruncated != (test.kept < test.written) || r.StdoutOmitted != test.written-test.kept {
			t.Errorf("%+v: got %d, truncated %v, %d missing, %s, %v", test, len(r.Stdout), r.StdoutTruncated, r.StdoutOmitted, r.Reason, err)
		}
		if test.limit != 10 && test.limit != 100 && string(r.Stderr) != "all written\n" {
			t.Errorf("%+v: stderr %q", test, r.Stderr)
		}
	}
}

func TestTimeoutKeepsTheOutputSoFar(t *testing.T) {
	sb := create(t, newLocal(t), sandbox.Config{})
	timeoutLongEnough(t, func(timeout time.Duration) bool {
		r, err := sb.Exec(t.Context(), sandbox.Command{
			Args: []string{"sh", "-c", "echo started; sleep 1000"}, Timeout: timeout,
		})
		if err != nil || r.Status != sandbox.StatusTimedOut || r.ExitCode != 124 || !strings.Contains(r.Reason, " "+timeout.String()+" ") {
			t.Fatalf("got %+v, %v", r, err)
		}
		return string(r.Stdout) == "started\n"
	})
}

// timeoutLongEnough tries with longer and longer timeouts until the command got as
// far as it should: on a slow machine the first ones are too short for that.
func timeoutLongEnough(t *testing.T, far func(timeout time.Duration) bool) {
	t.Helper()
	for timeout := time.Second; timeout < 2*time.Minute; timeout *= 4 {
		if far(timeout) {
			return
		}
	}
	t.Error("no timeout is long enough")
}

func TestCancelledCommandHasAResult(t *testing.T) {
	testhost.Concurrent(t)
	workspace := t.TempDir()
	sb := create(t, newLocal(t), sandbox.Config{Workspace: workspace})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		waitForFile(t, filepath.Join(workspace, "started"))
	}()
	r, err := sb.Run(ctx, "echo started; touch started; sleep 1000")
	if err != nil || r.Status != sandbox.StatusSignaled || r.Signal != "SIGTERM" || string(r.Stdout) != "started\n" ||
		!strings.Contains(r.Reason, "gave up") {
		t.Errorf("got %+v, %v", r, err)
	}
	if _, err := sb.Run(ctx, "true"); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that is done: %v", err)
	}
}

func TestStreamingAsItComes(t *testing.T) {
	sb := create(t, newLocal(t), sandbox.Config{})
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer inR.Close()
	p, err := sb.Start(t.Context(), sandbox.Command{Args: []string{"cat"}, Stdin: inR, Stdout: outW})
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	for _, word := range []string{"one", "two"} {
		if _, err := inW.WriteString(word); err != nil {
			t.Fatal(err)
		}
		if n, err := outR.Read(b); err != nil || string(b[:n]) != word {
			t.Fatalf("got %q, %v", b[:n], err)
		}
	}
	inW.Close()
	if r, err := p.Wait(); err != nil || !r.OK() {
		t.Errorf("got %+v, %v", r, err)
	}
	outW.Close()
	outR.Close()
}

func TestInputOfEachSizeArrives(t *testing.T) {
	sb := create(t, newLocal(t), sandbox.Config{})
	for _, size := range []int{0, 1, 4096, 4097, 1 << 20} {
		r, err := sb.Exec(t.Context(), sandbox.Command{Args: []string{"wc", "-c"}, Stdin: strings.NewReader(strings.Repeat("x", size))})
		if err != nil || strings.TrimSpace(string(r.Stdout)) != fmt.Sprint(size) {
			t.Errorf("%d: got %+v, %v", size, r, err)
		}
	}
}

// One writer for both is one stream.
func TestOneWriterGetsBothInOrder(t *testing.T) {
	sb := create(t, newLocal(t), sandbox.Config{})
	var out bytes.Buffer
	p, err := sb.Start(t.Context(), sandbox.Command{
		Args:   []string{"sh", "-c", "for i in 1 2 3 4 5; do echo o$i; echo e$i >&2; done"},
		Stdout: &out, Stderr: &out,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := p.Wait(); err != nil || !r.OK() {
		t.Fatalf("got %+v, %v", r, err)
	}
	if got := strings.Join(strings.Fields(out.String()), " "); got != "o1 e1 o2 e2 o3 e3 o4 e4 o5 e5" {
		t.Errorf("got %s", got)
	}
}

// A stuckWriter takes nothing until it is released.
type stuckWriter chan struct{}

func (w stuckWriter) Write(b []byte) (int, error) { <-w; return len(b), nil }

func TestTimeoutHoldsAgainstAReaderThatDoesNotRead(t *testing.T) {
	sb := create(t, newLocal(t), sandbox.Config{})
	out := make(stuckWriter)
	defer close(out)
	timeoutLongEnough(t, func(timeout time.Duration) bool {
		r, err := sb.Exec(t.Context(), sandbox.Command{
			Args: []string{"sh", "-c", "echo said >&2; exec yes"}, Timeout: timeout, Stdout: out,
		})
		if err != nil || r.Status != sandbox.StatusTimedOut {
			t.Fatalf("got %+v, %v", r, err)
		}
		return string(r.Stderr) == "said\n" && slices.ContainsFunc(r.Notes, func(n string) bool { return strings.Contains(n, "did not take") })
	})
}

// writerFunc is a writer of the caller's.
type writerFunc func(b []byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestCallerWhoHasEnoughEndsTheCommand(t *testing.T) {
	sb := create(t, newLocal(t), sandbox.Config{})
	enough := writerFunc(func([]byte) (int, error) { return 0, &os.PathError{Op: "write", Path: "|1", Err: unix.EPIPE} })
	r, err := sb.Exec(t.Context(), sandbox.Command{Args: []string{"yes"}, Stdout: enough})
	if err != nil || r.Signal != "SIGPIPE" {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestErrorOfAWriterIsNotLost(t *testing.T) {
	sb := create(t, newLocal(t), sandbox.Config{})
	full := errors.New("disk full")
	r, err := sb.Exec(t.Context(), sandbox.Command{
		Args: []string{"sh", "-c", "echo x; exit 4"}, Stdout: writerFunc(func([]byte) (int, error) { return 0, full }),
	})
	if !errors.Is(err, full) || r.ExitCode != 4 {
		t.Errorf("got %+v, %v", r, err)
	}
}

// Who was handed the command's output by it, and keeps it, is not waited for;
// what was written before is not lost.
func TestEndDoesNotWaitForOtherHoldersOfTheOutput(t *testing.T) {
	sb := create(t, newLocal(t), sandbox.Config{})
	for _, pause := range []string{"", "sleep 0.05;"} {
		begun := time.Now()
		r, err := sb.Run(t.Context(), "echo last words; "+pause+" setsid sleep 60 &"+pause+" true")
		if err != nil || string(r.Stdout) != "last words\n" || time.Since(begun) > testhost.Patience {
			t.Errorf("%q: got %+v after %s, %v", pause, r, time.Since(begun), err)
		}
	}
}

func TestProcessSignalsKillAndWait(t *testing.T) {
	testhost.Concurrent(t)
	sb := create(t, newLocal(t), sandbox.Config{})
	started, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer started.Close()
	defer w.Close()
	start := func() *sandbox.Process {
		p, err := sb.Start(t.Context(), sandbox.Command{
			Args: []string{"sh", "-c", "trap 'exit 9' USR1; echo ready; while :; do sleep 0.01; done"}, Stdout: w,
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := started.Read(make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := start()
	if err := p.Signal(unix.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	var together sync.WaitGroup
	for range 3 {
		together.Go(func() {
			if r, err := p.Wait(); err != nil || r.ExitCode != 9 && r.Signal != "SIGUSR1" {
				t.Errorf("got %+v, %v", r, err)
			}
		})
	}
	together.Wait()
	if err := errors.Join(p.Signal(unix.SIGTERM), p.Kill(), p.Resize(sandbox.Winsize{Rows: 1}), p.Close(), p.Close()); err != nil {
		t.Errorf("after its end: %v", err)
	}
	p = start()
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if r, err := p.Wait(); err != nil || r.Signal != "SIGKILL" {
		t.Errorf("got %+v, %v", r, err)
	}
	p = start()
	if err := p.Close(); err != nil { // kills
		t.Fatal(err)
	}
}

func TestNothingIsLeftOpen(t *testing.T) {
	sb := create(t, newLocal(t), sandbox.Config{})
	round := func() {
		var out bytes.Buffer
		for _, c := range []sandbox.Command{
			command("true"), command("no-such-command"), command("sh", "-c", "sleep 0.01; echo x"),
			{Args: []string{"cat"}, Stdin: strings.NewReader("x")},
			{Args: []string{"cat"}, Stdin: strings.NewReader(strings.Repeat("x", 1<<17)), Stdout: &out},
			{Args: []string{"sleep", "100"}, Timeout: time.Millisecond},
		} {
			if _, err := sb.Exec(t.Context(), c); err != nil {
				t.Error(err)
			}
		}
	}
	round()
	before := descriptors(t)
	for range 5 {
		round()
	}
	testhost.Eventually(t, fmt.Sprintf("no more than %d descriptors", before), func() bool { return descriptors(t) <= before })
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
