package sandbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// A bench is a provider with all that a launcher's sandboxes have, and a command
// that the test plays: what package sandbox makes of it is tested here, the
// rest with a launcher.
type bench struct {
	sandbox.Provider
	sandbox.Instance
	dir string

	mu       sync.Mutex
	attached int
	play     *playedCommand
	result   sandbox.Result
}

func (b *bench) Name() string                    { return "bench" }
func (b *bench) Available(context.Context) error { return nil }
func (b *bench) Info() sandbox.Info              { return sandbox.Info{ID: "bench", Provider: "bench"} }

func (b *bench) Remove(context.Context, string) error { return nil }
func (b *bench) Create(context.Context, sandbox.Request) (sandbox.Instance, error) {
	return b, nil
}

func (b *bench) Start(_ context.Context, c sandbox.Command, _ [3]*os.File) (sandbox.Execution, error) {
	p := &playedCommand{id: "e1", end: make(chan struct{}), signalled: make(chan struct{}), result: b.result}
	if c.Terminal != nil {
		var err error
		if p.master, p.slave, err = pty.Open(); err != nil {
			return nil, err
		}
		if err := pty.Setsize(p.master, &pty.Winsize{Rows: c.Terminal.Rows, Cols: c.Terminal.Columns}); err != nil {
			return nil, err
		}
	} else {
		for i := range p.files {
			var err error
			if p.files[i], err = os.Create(filepath.Join(b.dir, fmt.Sprint(i))); err != nil {
				return nil, err
			}
		}
	}
	b.play = p
	return p, nil
}

func (b *bench) Execs(context.Context) ([]sandbox.ExecInfo, error) {
	if b.play == nil {
		return nil, nil
	}
	select {
	case <-b.play.end:
		return nil, nil
	default:
		return []sandbox.ExecInfo{{ID: b.play.id, Detached: true}}, nil
	}
}

func (b *bench) Attach(_ context.Context, id string) (sandbox.Execution, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if id != b.play.id {
		return nil, sandbox.ErrNotFound
	}
	b.attached++
	return b.play, nil
}

type playedCommand struct {
	id            string
	master, slave *os.File
	files         [2]*os.File
	end           chan struct{}
	signalled     chan struct{}
	result        sandbox.Result
}

func (p *playedCommand) ID() string                        { return p.id }
func (p *playedCommand) Started(context.Context) error     { return nil }
func (p *playedCommand) Signal(syscall.Signal, bool) error { close(p.signalled); return nil }
func (p *playedCommand) Terminal() *os.File                { return p.master }
func (p *playedCommand) Output() (stdout, stderr *os.File) { return p.files[0], p.files[1] }
func (p *playedCommand) Close() error                      { return nil }
func (p *playedCommand) Wait(ctx context.Context) (sandbox.Result, error) {
	select {
	case <-p.end:
		return p.result, nil
	case <-ctx.Done():
		return sandbox.Result{}, ctx.Err()
	}
}

func newBench(t *testing.T) (*bench, *sandbox.Sandbox) {
	t.Helper()
	b := &bench{dir: t.TempDir()}
	m, err := sandbox.NewManager(sandbox.ManagerConfig{Providers: []sandbox.Provider{b}, Prefer: []string{"bench"}})
	if err != nil {
		t.Fatal(err)
	}
	return b, create(t, m, sandbox.Config{})
}

// A syncBuffer can be looked at while it is written.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *syncBuffer) waitFor(t *testing.T, want string) {
	t.Helper()
	testhost.Eventually(t, fmt.Sprintf("%q", want), func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.b.String() == want
	})
}

func TestAttachDeliversWhatWasKeptAndWhatComes(t *testing.T) {
	b, sb := newBench(t)
	b.result.StdoutTruncated = true
	p, err := sb.Start(t.Context(), sandbox.Command{Args: []string{"x"}, Detached: true})
	if err != nil || p.ID() != "e1" {
		t.Fatal(p, err)
	}
	fmt.Fprint(b.play.files[0], "kept ")
	fmt.Fprint(b.play.files[1], "errors")
	var out syncBuffer
	attached, err := sb.Attach(t.Context(), p.ID(), &out, nil)
	if err != nil {
		t.Fatal(err)
	}
	out.waitFor(t, "kept ")
	fmt.Fprint(b.play.files[0], "and more")
	out.waitFor(t, "kept and more")
	fmt.Fprint(b.play.files[0], ", last")
	close(b.play.end)
	r, err := attached.Wait()
	if err != nil || string(r.Stderr) != "errors" || r.Stdout != nil || !r.StdoutTruncated {
		t.Errorf("got %+v, %v", r, err)
	}
	out.waitFor(t, "kept and more, last")
	// Who started it and waits has all of it too.
	if r, err := p.Wait(); err != nil || string(r.Stdout) != "kept and more, last" || string(r.Stderr) != "errors" {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestAttachGivesUpWithItsContext(t *testing.T) {
	_, sb := newBench(t)
	p, err := sb.Start(t.Context(), sandbox.Command{Args: []string{"x"}, Detached: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	attached, err := sb.Attach(ctx, p.ID(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, cancel)
	if r, err := attached.Wait(); !errors.Is(err, context.Canceled) {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestTerminalIsJoinedAndResized(t *testing.T) {
	b, sb := newBench(t)
	var out syncBuffer
	p, err := sb.Start(t.Context(), sandbox.Command{
		Args: []string{"x"}, Terminal: &sandbox.Winsize{Rows: 5, Columns: 70}, Stdin: strings.NewReader("typed\n"), Stdout: &out,
	})
	if err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 100)
	if n, err := b.play.slave.Read(line); err != nil || string(line[:n]) != "typed\n" {
		t.Errorf("got %q, %v", line[:n], err)
	}
	if err := p.Resize(sandbox.Winsize{Rows: 6, Columns: 80}); err != nil {
		t.Fatal(err)
	}
	if rows, cols, err := pty.Getsize(b.play.slave); err != nil || rows != 6 || cols != 80 {
		t.Errorf("got %d, %d, %v", rows, cols, err)
	}
	fmt.Fprint(b.play.slave, "shown")
	out.waitFor(t, "typed\r\nshown")
	b.play.slave.Close() // the terminal's end is an error to the kernel, to nobody else
	close(b.play.end)
	if _, err := p.Wait(); err != nil {
		t.Error(err)
	}
	if err := p.Resize(sandbox.Winsize{}); err != nil {
		t.Errorf("after its end: %v", err)
	}
}

// Where its children are killed first, a command may exit of that.
func TestCommandThatWasKilledIsNotSaidToHaveFailed(t *testing.T) {
	for name, end := range map[string]func(*sandbox.Process, func()) error{
		"gave up": func(_ *sandbox.Process, cancel func()) error { cancel(); return nil },
		"killed":  func(p *sandbox.Process, _ func()) error { return p.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			b, sb := newBench(t)
			b.result = sandbox.Result{Status: sandbox.StatusExited, ExitCode: 3}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			p, err := sb.Start(ctx, command("x"))
			if err != nil {
				t.Fatal(err)
			}
			if err := end(p, cancel); err != nil {
				t.Fatal(err)
			}
			<-b.play.signalled
			close(b.play.end)
			r, err := p.Wait()
			if err != nil || r.Status != sandbox.StatusSignaled || r.ExitCode != 137 || r.Signal != "SIGKILL" || !strings.Contains(r.Reason, name) {
				t.Errorf("got %+v, %v", r, err)
			}
		})
	}
}

// overlapWriter is a writer that counts overlapping calls of Write.
type overlapWriter struct {
	inside, overlaps, bytes atomic.Int32
}

func (w *overlapWriter) Write(b []byte) (int, error) {
	if w.inside.Add(1) > 1 {
		w.overlaps.Add(1)
	}
	time.Sleep(10 * time.Millisecond)
	w.inside.Add(-1)
	w.bytes.Add(int32(len(b)))
	return len(b), nil
}

func TestOneWriterForBothStreamsGetsOneCallAtATime(t *testing.T) {
	testhost.Concurrent(t)
	b, sb := newBench(t)
	p, err := sb.Start(t.Context(), sandbox.Command{Args: []string{"x"}, Detached: true})
	if err != nil {
		t.Fatal(err)
	}
	var attachedTo, logged overlapWriter
	attached, err := sb.Attach(t.Context(), p.ID(), &attachedTo, &attachedTo)
	if err != nil {
		t.Fatal(err)
	}
	logs := make(chan error, 1)
	go func() { logs <- sb.Logs(t.Context(), p.ID(), &logged, &logged, true) }()
	const rounds = 20
	for range rounds {
		fmt.Fprint(b.play.files[0], "o")
		fmt.Fprint(b.play.files[1], "e")
		time.Sleep(20 * time.Millisecond)
	}
	close(b.play.end)
	if _, err := attached.Wait(); err != nil {
		t.Error(err)
	}
	if err := <-logs; err != nil {
		t.Error(err)
	}
	for what, w := range map[string]*overlapWriter{"Attach": &attachedTo, "Logs": &logged} {
		if w.bytes.Load() != 2*rounds || w.overlaps.Load() > 0 {
			t.Errorf("%s: %d bytes, %d calls at the same time as another", what, w.bytes.Load(), w.overlaps.Load())
		}
	}
}

// failingWriter is a writer that fails.
type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

func TestLogsEndWithTheirWriters(t *testing.T) {
	failed := errors.New("no space")
	for what, c := range map[string]struct {
		stdout, stderr io.Writer
		want           error
	}{
		"one fails":           {failingWriter{failed}, io.Discard, failed},
		"the only one fails":  {failingWriter{failed}, nil, failed},
		"no one takes more":   {failingWriter{syscall.EPIPE}, failingWriter{syscall.EPIPE}, nil},
		"both fail as one":    {failingWriter{failed}, failingWriter{failed}, failed},
		"the other one fails": {nil, failingWriter{failed}, failed},
	} {
		t.Run(what, func(t *testing.T) {
			b, sb := newBench(t)
			p, err := sb.Start(t.Context(), sandbox.Command{Args: []string{"x"}, Detached: true})
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprint(b.play.files[0], "out")
			fmt.Fprint(b.play.files[1], "err")
			ctx, cancel := context.WithTimeout(t.Context(), testhost.Patience)
			defer cancel()
			if err := sb.Logs(ctx, p.ID(), c.stdout, c.stderr, true); !errors.Is(err, c.want) || ctx.Err() != nil {
				t.Errorf("got %v", err)
			}
		})
	}
}
