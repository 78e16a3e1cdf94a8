package protocol

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// serveEcho is a service where a command writes its arguments and exits with 3.
func serveEcho(c *call) {
	if c.word != OpStart.String() {
		c.fail(fmt.Errorf("%s: %w", c.word, fault.ErrNotFound))
		return
	}
	id, r := requestOf[StartRequest](c)
	fmt.Fprint(c.files[0], strings.Join(r.Command.Plain().Args, " "))
	descriptor.Close(c.files...)
	c.answer(CommandAnswer{Result: NewWireResult(spec.Result{
		ID: id, Status: spec.StatusExited, ExitCode: 3, Duration: 1234567, CPU: 891, PeakMemory: 7,
		Stdout: []byte("none of the launcher's business"),
	})})
}

func TestACommandWritesToItsClientsPipe(t *testing.T) {
	client := connect(t, serveEcho)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p, err := client.Start(t.Context(), "box", spec.Command{Args: []string{"echo", "a", "\xff"}}, [3]*os.File{1: w})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	w.Close()
	out, err := io.ReadAll(r)
	if err != nil || string(out) != "echo a \xff" {
		t.Errorf("%q, %v", out, err)
	}
	want := spec.Result{ID: "box", Status: spec.StatusExited, ExitCode: 3, Duration: 1234567, CPU: 891, PeakMemory: 7}
	for range 2 {
		if got, err := p.Wait(t.Context()); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, %v", got, err)
		}
	}
	if err := p.Signal(unix.SIGTERM, false); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal after the end: %v", err)
	}
}

func TestErrorsCross(t *testing.T) {
	inner := &fault.NotRunError{Code: 126, Reason: "x: is a directory"}
	tests := map[string]error{
		"not found":  &fault.SandboxError{ID: "box", Err: fault.ErrNotFound},
		"exists":     &fault.SandboxError{ID: "box", Err: fmt.Errorf("%w: remove it first", fault.ErrExists)},
		"not run":    inner,
		"wrapped":    fmt.Errorf("start: %w", inner),
		"in sandbox": fmt.Errorf("well: %w", &fault.SandboxError{ID: "box", Err: fmt.Errorf("exec: %w", inner)}),
		"config":     &fault.ConfigError{Reason: "limits.memory: 1 is too little"},
		"field":      errors.Join(&spec.FieldError{Field: "cwd", Problem: "x"}, &spec.FieldError{Field: "env", Problem: "y"}),
		"deadline":   fmt.Errorf("wait: %w", context.DeadlineExceeded),
		"canceled":   context.Canceled,
		"paused":     fault.ErrPaused,
		"no file":    fmt.Errorf("open: %w", fs.ErrNotExist),
		"two":        fmt.Errorf("%w and %w", fault.ErrBusy, fault.ErrUnavailable),
		"both":       fmt.Errorf("%w: %w", &fault.SandboxError{ID: "box", Err: fault.ErrPaused}, context.Canceled),
		"plain":      errors.New("disk on fire"),
	}
	client := connect(t, func(c *call) {
		id, _ := requestOf[None](c)
		c.fail(tests[id])
	})
	for name, want := range tests {
		t.Run(name, func(t *testing.T) {
			_, got := client.Info(t.Context(), name)
			if got == nil || got.Error() != want.Error() {
				t.Fatalf("got %v, want %v", got, want)
			}
			for _, condition := range fault.Conditions() {
				if errors.Is(got, condition) != errors.Is(want, condition) {
					t.Errorf("errors.Is %v: got %t", condition, errors.Is(got, condition))
				}
			}
			sameAs[*fault.SandboxError](t, got, want, func(e *fault.SandboxError) string { return e.Error() + e.ID })
			sameAs[*fault.NotRunError](t, got, want, func(e *fault.NotRunError) string { return fmt.Sprint(e.Code, e.Reason) })
			if name != "field" {
				sameAs[*fault.ConfigError](t, got, want, (*fault.ConfigError).Error)
			} else if config := (*fault.ConfigError)(nil); !errors.As(got, &config) || config.Reason != want.Error() {
				t.Errorf("mistakes in fields came as %v", config)
			}
		})
	}
}

func sameAs[E error](t *testing.T, got, want error, text func(E) string) {
	t.Helper()
	var a, b E
	if errors.As(got, &a) != errors.As(want, &b) {
		t.Errorf("errors.As %T: got %t", a, errors.As(got, &a))
	} else if errors.As(want, &b) && text(a) != text(b) {
		t.Errorf("got %s, want %s", text(a), text(b))
	}
}

func TestStartedTellsWhyNot(t *testing.T) {
	client := connect(t, func(c *call) {
		c.fail(&fault.NotRunError{Code: 127, Reason: "nope: not found"})
	})
	p, err := client.Start(t.Context(), "box", spec.Command{Args: []string{"nope"}}, [3]*os.File{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var notRun *fault.NotRunError
	if err := p.Started(t.Context()); !errors.As(err, &notRun) || notRun.Code != 127 {
		t.Errorf("Started: %v", err)
	}
	if _, err := p.Wait(t.Context()); !errors.As(err, &notRun) {
		t.Errorf("Wait: %v", err)
	}
}

func TestStartedIsToldWhereItIsAskedFor(t *testing.T) {
	signals := make(chan Control, 1)
	client := connect(t, func(c *call) {
		if ctl := c.control(); ctl == nil || !ctl.Tell {
			t.Errorf("asked for %+v", ctl)
		}
		c.answer(CommandAnswer{Started: &Started{Exec: "e1"}})
		if ctl := c.control(); ctl != nil {
			signals <- *ctl
		}
		c.answer(CommandAnswer{Result: NewWireResult(spec.Result{Status: spec.StatusSignaled})})
	})
	p, err := client.Start(t.Context(), "box", spec.Command{Args: []string{"sleep"}}, [3]*os.File{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for range 2 {
		if err := p.Started(t.Context()); err != nil || p.ID() != "e1" {
			t.Errorf("started %q, %v", p.ID(), err)
		}
	}
	brief, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := p.Wait(brief); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("brief wait: %v", err)
	}
	if err := p.Signal(unix.SIGUSR1, true); err != nil {
		t.Error(err)
	}
	if got := <-signals; got != (Control{Signal: int(unix.SIGUSR1), Tree: true}) {
		t.Errorf("signal came as %+v", got)
	}
	if result, err := p.Wait(t.Context()); err != nil || result.Status != spec.StatusSignaled {
		t.Errorf("%+v, %v", result, err)
	}
}

func TestATerminalComesThrough(t *testing.T) {
	client := connect(t, func(c *call) {
		master, slave, err := pty.Open()
		if err != nil {
			t.Error(err)
			return
		}
		defer slave.Close()
		c.answer(CommandAnswer{Started: &Started{Exec: "e", Files: []FileKind{FileTerminal}}}, master)
		master.Close()
		fmt.Fprintln(slave, "hello")
		c.control()
	})
	p, err := client.Start(t.Context(), "box", spec.Command{Args: []string{"sh"}, Terminal: &spec.Winsize{Rows: 24, Columns: 80}}, [3]*os.File{})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Started(t.Context()); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 7)
	if _, err := io.ReadFull(p.Terminal(), line); err != nil || string(line) != "hello\r\n" {
		t.Errorf("%q, %v", line, err)
	}
	ended := make(chan error)
	terminal := p.Terminal()
	go func() {
		_, err := io.Copy(io.Discard, terminal) // waits for more
		ended <- err
	}()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	<-ended
	if _, err := p.Wait(t.Context()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Wait after Close: %v", err)
	}
}

func TestCloseGivesUpTheCommand(t *testing.T) {
	gone := make(chan struct{})
	client := connect(t, func(c *call) {
		if c.control() == nil {
			close(gone)
		}
	})
	p, err := client.Start(t.Context(), "box", spec.Command{Args: []string{"sleep"}}, [3]*os.File{})
	if err != nil {
		t.Fatal(err)
	}
	waited := make(chan error)
	go func() { _, err := p.Wait(context.Background()); waited <- err }()
	p.Close()
	p.Close()
	<-gone
	if err := <-waited; !errors.Is(err, os.ErrClosed) {
		t.Errorf("Wait: %v", err)
	}
}

func TestTheClientOpensWhatAConfigurationNames(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for _, name := range []string{"w", "root"} {
		if err := os.Mkdir(name, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"f", "seccomp.json"} {
		if err := os.WriteFile(name, []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo("fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	config := spec.Config{
		Rootfs: "root", Workspace: "./w", Seccomp: "seccomp.json",
		Binds: []spec.Bind{
			{Source: "f", Target: "/f"}, {Source: "f", Target: "/g", Writable: true},
			{Source: dir + "/f", Target: "/h"}, {Source: "fifo", Target: "/i"},
		},
	}
	kept := make(chan bool, 1)
	client := connect(t, func(c *call) {
		var r CreateRequest
		if err := json.Unmarshal(c.body, &r); err != nil {
			t.Error(err)
			return
		}
		var got []string
		for i, path := range r.Paths {
			flags, err := unix.FcntlInt(c.files[i].Fd(), unix.F_GETFL, 0)
			if err != nil {
				t.Error(err)
			}
			opened, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", c.files[i].Fd()))
			if opened != path {
				t.Errorf("%s came as %s", path, opened)
			}
			got = append(got, fmt.Sprintf("%s %t %d", strings.TrimPrefix(path, dir), flags&unix.O_PATH != 0, flags&unix.O_ACCMODE))
		}
		want := []string{"/root false 0", "/w false 0", "/f false 2", "/fifo true 0", "/seccomp.json false 0"}
		if !slices.Equal(got, want) {
			t.Errorf("descriptors\n%q, want\n%q", got, want)
		}
		c.answer(spec.Info{ID: "box", Config: r.Create.Config})
		ctl := c.control()
		kept <- ctl != nil && ctl.Keep
	})
	info, err := client.Create(t.Context(), Create{Name: "box", Config: config})
	if err != nil {
		t.Fatal(err)
	}
	if !<-kept {
		t.Error("the client did not say that it got the sandbox")
	}
	if info.Config.Workspace != dir+"/w" || info.Config.Binds[0].Source != dir+"/f" || config.Binds[0].Source != "f" {
		t.Errorf("paths became %+v, the caller's %+v", info.Config, config)
	}
}

func TestAWorkspaceThatIsNotThere(t *testing.T) {
	client := connect(t, serveEcho)
	_, err := client.Create(t.Context(), Create{Config: spec.Config{Workspace: "/no/such"}})
	var config *fault.ConfigError
	if !errors.As(err, &config) || !errors.Is(err, fs.ErrNotExist) ||
		!strings.HasPrefix(err.Error(), "workspace /no/such does not exist, ") || strings.Contains(err.Error(), "no such file") {
		t.Errorf("%v", err)
	}
	_, err = client.Create(t.Context(), Create{Config: spec.Config{Binds: []spec.Bind{{Source: "/no/such", Target: "/x"}}}})
	if !errors.As(err, &config) || !errors.Is(err, fs.ErrNotExist) || err.Error() != "bind /no/such does not exist" {
		t.Errorf("%v", err)
	}
}

func TestACreateThatIsGivenUpIsNotKept(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	kept := make(chan *Control, 1)
	client := connect(t, func(c *call) {
		cancel()
		kept <- c.control()
	})
	if _, err := client.Create(ctx, Create{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if ctl := <-kept; ctl != nil {
		t.Errorf("the launcher was told %+v", ctl)
	}
}

func TestLongRequestsAndAnswers(t *testing.T) {
	long := strings.Repeat("x", 3<<20)
	client := connect(t, func(c *call) {
		_, r := requestOf[StartRequest](c)
		c.answer(CommandAnswer{Started: &Started{Exec: r.Command.Env["LONG"]}})
		c.control()
	})
	p, err := client.Start(t.Context(), "box",
		spec.Command{Args: []string{"true"}, Env: map[string]string{"LONG": long}, Detached: true}, [3]*os.File{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Started(t.Context()); err != nil || p.ID() != long {
		t.Errorf("%d bytes came back, %v", len(p.ID()), err)
	}
	_, err = client.Start(t.Context(), "box", spec.Command{Args: []string{strings.Repeat("x", channel.MaxFrame)}}, [3]*os.File{})
	var config *fault.ConfigError
	if !errors.As(err, &config) {
		t.Errorf("a request that is too long: %v", err)
	}
}

func TestEvents(t *testing.T) {
	client := connect(t, func(c *call) {
		c.answer(nil)
		c.answer(&spec.Event{Type: spec.EventDied, ID: "box"})
		c.control()
	})
	events, err := client.Events(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if e, err := events.Next(t.Context()); err != nil || e.Type != spec.EventDied || e.ID != "box" {
		t.Errorf("%+v, %v", e, err)
	}
	brief, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := events.Next(brief); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	next := make(chan error)
	go func() { _, err := events.Next(context.Background()); next <- err }()
	events.Close()
	if err := <-next; !errors.Is(err, os.ErrClosed) {
		t.Errorf("Next at Close: %v", err)
	}
}

func TestALauncherOfAnotherVersion(t *testing.T) {
	tests := map[string]struct {
		hello Hello
		is    error
		text  string
	}{
		"newer":   {Hello{Protocol: Protocol + 1}, fault.ErrUnavailable, "is newer than its client"},
		"older":   {Hello{Protocol: Protocol - 1}, fault.ErrUnavailable, "is older than its client"},
		"refused": {Hello{Protocol: Protocol, Refused: fmt.Sprint(fault.ErrRefused, ": uid 7 has no rule")}, fault.ErrRefused, "uid 7 has no rule"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, conn := startWith(t, test.hello, serveEcho)
			client := clientOn(t, conn)
			<-client.Done()
			_, err := client.List(t.Context())
			if !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.text) || strings.Count(err.Error(), test.is.Error()) != 1 {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestTheEndOfTheLauncher(t *testing.T) {
	s, conn := start(t, func(c *call) { c.control() })
	client := clientOn(t, conn)
	p, err := client.Start(t.Context(), "box", spec.Command{Args: []string{"sleep"}}, [3]*os.File{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	brief, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := p.Wait(brief); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	s.trunk.Close()
	<-client.Done()
	for range 2 {
		if _, err := client.List(t.Context()); !errors.Is(err, fault.ErrUnavailable) {
			t.Errorf("a call afterwards: %v", err)
		}
	}
	if err := client.Err(); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("Err: %v", err)
	}
}

func TestDialAPathThatIsTooLong(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	if _, err := Dial(t.Context(), socket); !errors.Is(err, fault.ErrUnavailable) || !strings.HasSuffix(err.Error(), "sandbox-runtime launcher --socket "+socket) {
		t.Errorf("nobody there: %v", err)
	}
	if _, err := Dial(t.Context(), filepath.Join(dir, strings.Repeat("s", 100))); !errors.Is(err, fault.ErrUnavailable) ||
		!strings.Contains(err.Error(), "s is too long for the name of a socket, by ") {
		t.Errorf("a name that is too long: %v", err)
	}
	var listener *net.UnixListener
	err := descriptor.ShortPath(socket, func(short string) (err error) {
		listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		conn, err := listener.AcceptUnix()
		if err != nil {
			t.Error(err)
			return
		}
		ch, err := channel.OfConn(conn, 1)
		if err != nil {
			t.Error(err)
			return
		}
		defer ch.Close()
		_ = ch.Send(context.Background(), Hello{Protocol: Protocol}.Encode())
		for err == nil {
			_, _, err = ch.Receive(context.Background(), MaxHello)
		}
	}()
	client, err := Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	client.Close()
}

func TestAnAnswerThatIsNone(t *testing.T) {
	client := connect(t, func(c *call) {
		_ = c.channel.Send(context.Background(), []byte(`{"value":[`))
	})
	if _, err := client.Info(t.Context(), "box"); err == nil {
		t.Error("taken")
	}
}

func BenchmarkCall(b *testing.B) {
	client := connect(b, func(c *call) { c.answer(nil) })
	b.ReportAllocs()
	for b.Loop() {
		if _, err := client.List(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkExec is a captured exec as far as the wire goes: two pipes, the
// request, the result.
func BenchmarkExec(b *testing.B) {
	client := connect(b, func(c *call) {
		descriptor.Close(c.files...)
		id, _ := requestOf[StartRequest](c)
		c.answer(CommandAnswer{Result: NewWireResult(spec.Result{ID: id, Status: spec.StatusExited})})
	})
	command := spec.Command{Args: []string{"/bin/true"}, Env: map[string]string{"A": "b"}}
	b.ReportAllocs()
	for b.Loop() {
		p, err := client.Start(context.Background(), "box", command, [3]*os.File{})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := p.Wait(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}
