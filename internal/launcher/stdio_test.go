package launcher

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A stuckWriter takes nothing until it is released.
type stuckWriter chan struct{}

func (w stuckWriter) Write(b []byte) (int, error) { <-w; return len(b), nil }

func TestTimeoutHoldsAgainstAReaderThatDoesNotRead(t *testing.T) {
	l := newTestLauncher(t)
	sb, err := l.Create(t.Context(), spec.Config{Timeout: spec.Duration(200 * time.Millisecond)}, Caller{})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	out := make(stuckWriter)
	defer close(out)
	p, err := sb.Start(t.Context(), Command{Args: []string{"yes"}, Streams: Streams{Stdout: out}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.Wait(t.Context())
	if err != nil || r.Status != spec.StatusTimedOut || !slices.Contains(r.Notes, errNotTaken.Error()) {
		t.Errorf("got %+v, %v", r, err)
	}
}

// Who was handed the command's output by it, and keeps it, is not waited for;
// what was written before is not lost.
func TestEndDoesNotWaitForOtherHoldersOfTheOutput(t *testing.T) {
	var out bytes.Buffer
	p, err := openStdio(Streams{Stdout: &out}, os.Getuid(), os.Getgid())
	if err != nil {
		t.Fatal(err)
	}
	other, err := unix.Dup(int(p.inside[1].Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(other)
	if _, err := p.inside[1].WriteString("last words"); err != nil {
		t.Fatal(err)
	}
	p.closeInside()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := p.wait(ctx); err != nil || out.String() != "last words" {
		t.Errorf("got %q, %v", out.String(), err)
	}
}

// enoughWriter is a caller whose own reader has gone.
type enoughWriter struct{}

func (enoughWriter) Write([]byte) (int, error) {
	return 0, &os.PathError{Op: "write", Path: "|1", Err: unix.EPIPE}
}

func TestCallerWhoHasEnoughEndsTheCommand(t *testing.T) {
	l := newTestLauncher(t)
	sb, err := l.Create(t.Context(), spec.Config{}, Caller{})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	p, err := sb.Start(t.Context(), Command{Args: []string{"yes"}, Streams: Streams{Stdout: enoughWriter{}}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.Wait(t.Context())
	if err != nil || r.Signal != "SIGPIPE" {
		t.Errorf("got %+v, %v", r, err)
	}
}

// A write that waits for its turn on a throttled disk cannot be killed.
func TestTimeoutEndsAThrottledCommand(t *testing.T) {
	l := newTestLauncher(t)
	dir := t.TempDir()
	if disks, err := disksOf(dir); err != nil || len(disks) == 0 {
		t.Skipf("%s is on no disk that can be throttled", filepath.Dir(dir))
	}
	c := spec.Config{
		Workspace: dir,
		Limits:    spec.Limits{IOWrite: 64 << 10},
		Timeout:   spec.Duration(500 * time.Millisecond),
	}
	begin := time.Now()
	r, err := runCommand(t, l, c, "dd", "if=/dev/zero", "of=f", "bs=4M", "count=1", "oflag=direct")
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); r.Status != spec.StatusTimedOut || took > 20*time.Second {
		t.Errorf("after %v: %+v", took, r)
	}
}

func TestPruneRemovesASandboxWithDamagedState(t *testing.T) {
	l := newTestLauncher(t)
	sb, err := l.Create(t.Context(), spec.Config{}, Caller{})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(l.root, sb.id, "state.json"), 0); err != nil {
		t.Fatal(err)
	}
	sb.state.held.Close()
	pruned, err := l.Prune(t.Context())
	if err != nil || !slices.Equal(pruned, []string{sb.id}) {
		t.Errorf("pruned %v, %v", pruned, err)
	}
	sb.init.Wait()
	sb.agent.Close()
	checkNothingLeft(t, l)
}

func TestDrainTakesAllThatIsThere(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if _, err := unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, pipeCapacity); err != nil {
		t.Fatal(err)
	}
	want := strings.Repeat("x", pipeCapacity)
	if _, err := w.WriteString(want); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := drain(&out, r); err != nil || out.String() != want {
		t.Errorf("got %d bytes, %v", out.Len(), err)
	}
	if err := copyOutput(&out, closedReader(t)); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the deadline is no error: %v", err)
	}
}

// closedReader is an empty pipe whose writer is open and whose deadline passed.
func closedReader(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	if err := r.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	return r
}
