package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// TestMain fails where a test leaves descriptors or goroutines behind.
func TestMain(m *testing.M) { os.Exit(testhost.RunServing(m)) }

func openFiles() int { return len(testhost.Descriptors()) }

// A capturedLog has the lines that a server has logged.
type capturedLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *capturedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *capturedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

type world struct {
	*Server
	core *fakeCore
	log  *capturedLog
}

func newWorld(t testing.TB, rules ...Rule) *world {
	t.Helper()
	core, log := newFakeCore(), &capturedLog{}
	for i := range rules {
		if err := rules[i].complete(); err != nil {
			t.Fatal(err)
		}
	}
	w := &world{New(core, Rules{Peers: rules}, slog.New(slog.NewTextHandler(log, nil))), core, log}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		w.Shutdown(ctx)
	})
	return w
}

// socket is a connection to the server, as a user.
func (w *world) socket(t testing.TB, uid uint32) (conn *net.UnixConn, done <-chan struct{}) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	channel, err := channel.New(fds[0], 1)
	if err != nil {
		t.Fatal(err)
	}
	if done, err = w.takeFrom(channel, uid, []uint32{uid}); err != nil {
		t.Logf("connect as %d: %v", uid, err)
	}
	if conn, err = descriptor.UnixConn(os.NewFile(uintptr(fds[1]), "client")); err != nil {
		t.Fatal(err)
	}
	return conn, done
}

func (w *world) client(t testing.TB, uid uint32) *protocol.Client {
	t.Helper()
	conn, _ := w.socket(t, uid)
	c, err := protocol.NewClient(conn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// The launcher knows the blanks of a user's rule.
func TestBlanksOfARule(t *testing.T) {
	none := 0
	w := newWorld(t, Rule{User: "1001", Blanks: &none}, Rule{User: "1002"})
	box(t, w.client(t, 1001), "x")
	box(t, w.client(t, 1002), "y")
	if x, y := w.core.box("x").from.Blanks, w.core.box("y").from.Blanks; x == nil || *x != 0 || y != nil {
		t.Errorf("got %v and %v", x, y)
	}
}

// box makes a sandbox.
func box(t testing.TB, c *protocol.Client, name string) spec.Info {
	t.Helper()
	i, err := c.Create(t.Context(), protocol.Create{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func start(t testing.TB, c *protocol.Client, id string, args ...string) *protocol.Process {
	t.Helper()
	p, err := c.Start(t.Context(), id, spec.Command{Args: args}, [3]*os.File{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func TestTheLifeOfASandbox(t *testing.T) {
	w := newWorld(t)
	c := w.client(t, 0)
	ctx := t.Context()
	if i := box(t, c, "box"); i.ID != "box" || i.Owner != 0 {
		t.Errorf("%+v", i)
	}
	if _, err := c.Create(ctx, protocol.Create{Name: "box"}); !errors.Is(err, fault.ErrExists) {
		t.Errorf("again: %v", err)
	}
	if i, err := c.Create(ctx, protocol.Create{Name: "box", Reuse: true}); err != nil || !i.Reused {
		t.Errorf("reused: %+v, %v", i, err)
	}
	r, wr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p, err := c.Start(ctx, "box", spec.Command{Args: []string{"echo", "hi"}}, [3]*os.File{1: wr})
	if err != nil {
		t.Fatal(err)
	}
	wr.Close()
	if out, err := io.ReadAll(r); err != nil || string(out) != "hi" {
		t.Errorf("%q, %v", out, err)
	}
	if result, err := p.Wait(ctx); err != nil || result.Status != spec.StatusExited {
		t.Errorf("%+v, %v", result, err)
	}
	if err := protocol.Tell(ctx, c, protocol.OpUpdate, "box", spec.Limits{Pids: 50}); err != nil || w.core.box("box").updated().Pids != 50 {
		t.Errorf("update: %v", err)
	}
	if err := protocol.Tell(ctx, c, protocol.OpPause, "box", protocol.None{}); err != nil {
		t.Error(err)
	}
	if _, err := start(t, c, "box", "true").Wait(ctx); !errors.Is(err, fault.ErrPaused) {
		t.Errorf("paused: %v", err)
	}
	if err := protocol.Tell(ctx, c, protocol.OpResume, "box", protocol.None{}); err != nil {
		t.Error(err)
	}
	if _, err := protocol.AskAbout(ctx, c, protocol.OpStats, "box", protocol.None{}); err != nil {
		t.Error(err)
	}
	if all, err := c.List(ctx); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
	for range 2 {
		if err := c.Remove(ctx, "box"); err != nil {
			t.Error(err)
		}
	}
	var of *fault.SandboxError
	if _, err := c.Info(ctx, "box"); !errors.Is(err, fault.ErrNotFound) || !errors.As(err, &of) || of.ID != "box" {
		t.Errorf("info: %v", err)
	}
}

func TestACommandThatDoesNotRun(t *testing.T) {
	w := newWorld(t)
	c := w.client(t, 0)
	box(t, c, "box")
	var notRun *fault.NotRunError
	if err := start(t, c, "box", "nope").Started(t.Context()); !errors.As(err, &notRun) || notRun.Code != 127 {
		t.Errorf("%v", err)
	}
}

func TestNothingIsCountedThatIsOver(t *testing.T) {
	w := newWorld(t, Rule{User: "1001"})
	conn, done := w.socket(t, 1001)
	c, err := protocol.NewClient(conn)
	if err != nil {
		t.Fatal(err)
	}
	box(t, c, "box")
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, what := range []string{"true", "nope", "panic", "hang"} {
		p, err := c.Start(t.Context(), "box", spec.Command{Args: []string{what}}, [3]*os.File{null, null})
		if err != nil {
			t.Fatal(err)
		}
		_ = p.Started(t.Context())
	}
	if err := protocol.Tell(t.Context(), c, protocol.OpPause, "nothing", protocol.None{}); !errors.Is(err, fault.ErrNotFound) {
		t.Error(err)
	}
	c.Close()
	<-done
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.peers[1001]; p.calls != 0 || p.descriptors != 0 || len(p.making) != 0 || w.calls != 0 {
		t.Errorf("%d calls, %d descriptors, %v sandboxes being made; %d calls of all", p.calls, p.descriptors, p.making, w.calls)
	}
}

func TestSignalsArriveInOrderAlsoBeforeTheStart(t *testing.T) {
	w := newWorld(t)
	c := w.client(t, 0)
	box(t, c, "box")
	p := start(t, c, "box", "hang")
	for _, s := range []unix.Signal{1, 2, 15, 9} {
		if err := p.Signal(s, s == 15); err != nil {
			t.Fatal(err)
		}
	}
	r, err := p.Wait(t.Context())
	if err != nil || r.Reason != "1 false 2 false 15 true 9 false" {
		t.Errorf("%q, %v", r.Reason, err)
	}
}

func TestACommandEndsWithItsCallAndWithTheConnection(t *testing.T) {
	for name, end := range map[string]func(c *protocol.Client, p *protocol.Process) error{
		"call":       func(_ *protocol.Client, p *protocol.Process) error { return p.Close() },
		"connection": func(c *protocol.Client, _ *protocol.Process) error { return c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c := w.client(t, 0)
			box(t, c, "box")
			attached := start(t, c, "box", "hang")
			detached, err := c.Start(t.Context(), "box", spec.Command{Args: []string{"hang"}, Detached: true}, [3]*os.File{})
			if err != nil {
				t.Fatal(err)
			}
			defer detached.Close()
			if err := errors.Join(attached.Started(t.Context()), detached.Started(t.Context())); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(end(c, attached), end(c, detached)); err != nil {
				t.Fatal(err)
			}
			// Handles are held by commands that are stayed with.
			testhost.Eventually(t, "the end of the calls", func() bool {
				w.handles.mu.Lock()
				defer w.handles.mu.Unlock()
				h := w.handles.open["box"]
				return h == nil || h.users == 0
			})
			other := w.client(t, 0)
			again, err := other.Attach(t.Context(), "box", detached.ID())
			if err != nil {
				t.Fatal(err)
			}
			defer again.Close()
			if err := again.Started(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := again.Signal(unix.SIGKILL, false); err != nil {
				t.Fatal(err)
			}
			if r, err := again.Wait(t.Context()); err != nil || r.Status != spec.StatusSignaled {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}

// The level of a name stays. The level of a generated name ends.
func TestACreateThatNobodyLearnsOfIsUndone(t *testing.T) {
	for name, abandoned := range map[string][]string{"box": {"box"}, "": nil} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c := w.client(t, 0)
			ctx, cancel := context.WithCancel(t.Context())
			w.core.onCreate(func(ctx context.Context) error {
				cancel()
				<-ctx.Done() // the client has gone; it is made all the same
				return nil
			})
			if _, err := c.Create(ctx, protocol.Create{Name: name}); !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
			testhost.Eventually(t, "the removal", func() bool {
				w.core.mu.Lock()
				defer w.core.mu.Unlock()
				return w.core.made == 1 && len(w.core.boxes) == 0 && slices.Equal(w.core.abandoned, abandoned)
			})
		})
	}
}

func TestASandboxIsKeptWhoseClientGoesAtOnce(t *testing.T) {
	w := newWorld(t)
	for i := range 1000 {
		conn, done := w.socket(t, 0)
		c, err := protocol.NewClient(conn)
		if err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprint("box", i)
		box(t, c, name)
		c.Close()
		<-done
		if w.core.box(name) == nil {
			t.Fatalf("%s was removed", name)
		}
	}
}

func TestTheEndOfACallEndsItsCreate(t *testing.T) {
	w := newWorld(t)
	c := w.client(t, 0)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	w.core.onCreate(func(ctx context.Context) error {
		cancel()
		<-ctx.Done()
		ended <- ctx.Err()
		return ctx.Err()
	})
	if _, err := c.Create(ctx, protocol.Create{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	<-ended
}

func TestTiedSandboxesEndWithTheConnection(t *testing.T) {
	w := newWorld(t)
	conn, done := w.socket(t, 0)
	c, err := protocol.NewClient(conn)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"tied", "again"} {
		if _, err := c.Create(t.Context(), protocol.Create{Name: name, Tied: true}); err != nil {
			t.Fatal(err)
		}
	}
	box(t, c, "free")
	// Another takes the name of one.
	if _, err := w.core.Remove(t.Context(), "again", Condition{}); err != nil {
		t.Fatal(err)
	}
	box(t, w.client(t, 0), "again")
	c.Close()
	<-done
	for name, want := range map[string]bool{"tied": false, "again": true, "free": true} {
		if got := w.core.box(name) != nil; got != want {
			t.Errorf("%s: there is %t", name, got)
		}
	}
	if abandoned, _ := w.core.calls(); !slices.Equal(abandoned, []string{"tied"}) { // nobody has removed it
		t.Errorf("abandoned: %q", abandoned)
	}
}

// A client can remove the sandbox that it has made: a later one with the name stays, counts, and stays tied.
func TestARemovalOfOneSandboxLeavesALaterOne(t *testing.T) {
	w := newWorld(t, Rule{User: "1001", Sandboxes: 1})
	conn, done := w.socket(t, 1001)
	c, err := protocol.NewClient(conn)
	if err != nil {
		t.Fatal(err)
	}
	tied := protocol.Create{Name: "x", Tied: true}
	first, err := c.Create(t.Context(), tied)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.client(t, 1001).Remove(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	second, err := c.Create(t.Context(), tied)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.RemoveCreated(t.Context(), "x", first.Created); err != nil {
		t.Fatal(err)
	}
	if b := w.core.box("x"); b == nil || b.currentInfo().State != spec.StateRunning {
		t.Fatal("the later sandbox was removed")
	}
	if _, err := c.Create(t.Context(), protocol.Create{Name: "y"}); !errors.Is(err, fault.ErrRefused) {
		t.Errorf("beyond the bound: %v", err)
	}
	c.Close()
	<-done
	if w.core.box("x") != nil {
		t.Error("the later sandbox was not tied any more")
	}
	c = w.client(t, 1001)
	if err := c.RemoveCreated(t.Context(), "x", second.Created); err != nil {
		t.Errorf("no sandbox: %v", err)
	}
	if _, forgotten := w.core.calls(); len(forgotten) > 0 { // the level can be that of a later sandbox
		t.Errorf("levels that were ended: %q", forgotten)
	}
}

// A user that removes a name without a sandbox ends the level of the name, and of no other user's.
func TestARemovalEndsTheLevelOfANameWithoutASandbox(t *testing.T) {
	w := newWorld(t, Rule{User: "1001"}, Rule{User: "1002"})
	box(t, w.client(t, 1002), "theirs")
	for _, name := range []string{"gone", "theirs"} {
		if err := w.client(t, 1001).Remove(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	if _, forgotten := w.core.calls(); !slices.Equal(forgotten, []string{"gone of 1001", "theirs of 1001"}) {
		t.Errorf("forgotten: %q", forgotten)
	}
	if w.core.box("theirs") == nil {
		t.Error("another's sandbox was removed")
	}
}

func TestASandboxThatHangsBlocksNobody(t *testing.T) {
	w := newWorld(t)
	c := w.client(t, 0)
	box(t, c, "box")
	var hung []*protocol.Process
	for range 20 {
		hung = append(hung, start(t, c, "stuck", "true"))
	}
	slow, stopped := start(t, c, "box", "slow"), start(t, c, "box", "stopped")
	if _, err := start(t, c, "box", "true").Wait(t.Context()); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	for _, p := range append(hung, slow, stopped) {
		if _, err := p.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("hung: %v", err)
		}
		if err := p.Signal(unix.SIGTERM, false); err != nil {
			t.Error(err)
		}
		p.Close()
	}
	testhost.Eventually(t, "the end of the hung calls", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.calls == 0
	})
}

func TestAPanicIsOneCallsAlone(t *testing.T) {
	w := newWorld(t)
	c := w.client(t, 0)
	box(t, c, "box")
	other := start(t, c, "box", "hang")
	if err := other.Started(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"panic", "panic-later", "panic-signal"} {
		p := start(t, c, "box", what)
		if what == "panic-signal" {
			_ = p.Signal(unix.SIGTERM, false)
		}
		if _, err := p.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), "the launcher has a defect") {
			t.Errorf("%s: %v", what, err)
		}
		if !strings.Contains(w.log.String(), what) && !strings.Contains(w.log.String(), "fake_test.go") {
			t.Errorf("%s is not logged:\n%s", what, w.log)
		}
	}
	if err := other.Signal(unix.SIGKILL, false); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Wait(t.Context()); err != nil {
		t.Errorf("the other one: %v", err)
	}
	c.Close()
	testhost.Eventually(t, "the release of the handles", func() bool {
		w.handles.close()
		return w.core.box("box").handles() == 0
	})
}

func TestShutdownLetsCommandsEnd(t *testing.T) {
	w := newWorld(t)
	c := w.client(t, 0)
	box(t, c, "box")
	p := start(t, c, "box", "hang")
	stubborn := start(t, c, "box", "hang")
	detached, err := c.Start(t.Context(), "box", spec.Command{Args: []string{"hang"}, Detached: true}, [3]*os.File{})
	if err != nil {
		t.Fatal(err)
	}
	defer detached.Close()
	events, err := c.Events(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	for _, p := range []*protocol.Process{p, stubborn, detached} {
		if err := p.Started(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	down := make(chan struct{})
	go func() { w.Shutdown(ctx); close(down) }()
	testhost.Eventually(t, "the drain", func() bool { return w.draining.Err() != nil })
	if _, err := c.List(t.Context()); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("a new call: %v", err)
	}
	for what, err := range map[string]error{
		"events": second(events.Next(t.Context())), "detached": second(detached.Wait(t.Context())),
	} {
		if !errors.Is(err, fault.ErrUnavailable) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := p.Signal(unix.SIGKILL, false); err != nil {
		t.Error(err)
	}
	if _, err := p.Wait(t.Context()); err != nil {
		t.Errorf("one that ended in time: %v", err)
	}
	select {
	case <-down:
		t.Fatal("did not wait for the other one")
	default:
	}
	cancel()
	<-down
	if _, err := stubborn.Wait(t.Context()); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("one that did not: %v", err)
	}
	if w.core.box("box") == nil {
		t.Error("the sandbox did not stay up")
	}
}

func second[T any](_ T, err error) error { return err }

func TestAHandleIsOpenedOnceAndDroppedWhenTheSandboxIsAnother(t *testing.T) {
	w := newWorld(t)
	c := w.client(t, 0)
	box(t, c, "box")
	held := start(t, c, "box", "hang") // or a slow machine may find it idle
	if err := held.Started(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if _, err := start(t, c, "box", "true").Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if w.core.opened != 0 {
		t.Errorf("opened %d times", w.core.opened)
	}
	held.Close()
	// Another process replaces it.
	old := w.core.box("box")
	if _, err := w.core.Remove(t.Context(), "box", Condition{}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.core.Create(t.Context(), protocol.Create{Name: "box"}, Sources{}); err != nil {
		t.Fatal(err)
	}
	if _, err := start(t, c, "box", "true").Wait(t.Context()); err != nil {
		t.Errorf("in the new one: %v", err)
	}
	testhost.Eventually(t, "the release of the old one", func() bool { return old.handles() == 0 })
	w.core.box("box").set(spec.StateStopped)
	if _, err := start(t, c, "box", "true").Wait(t.Context()); !errors.Is(err, fault.ErrNotRunning) {
		t.Errorf("in one that has died: %v", err)
	}
}

// TestPeersAreKeptApart has two users with a rule each, and root.
func TestPeersAreKeptApart(t *testing.T) {
	w := newWorld(t, Rule{User: "1001", Sandboxes: 2}, Rule{User: "1002"})
	root, a, b := w.client(t, 0), w.client(t, 1001), w.client(t, 1002)
	ctx := t.Context()
	if os.Geteuid() != 0 {
		t.Log("root here is", os.Geteuid())
	}
	box(t, a, "a")
	box(t, b, "b")
	box(t, root, "r")
	for name, test := range map[string]struct {
		client *protocol.Client
		sees   []string
	}{"a": {a, []string{"a"}}, "b": {b, []string{"b"}}, "root": {root, []string{"a", "b", "r"}}} {
		all, err := test.client.List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, i := range all {
			ids = append(ids, i.ID)
		}
		if !slices.Equal(ids, test.sees) {
			t.Errorf("%s sees %v", name, ids)
		}
	}
	p, err := b.Start(ctx, "b", spec.Command{Args: []string{"hang"}, Detached: true}, [3]*os.File{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Started(ctx); err != nil {
		t.Fatal(err)
	}
	attach := func() error {
		q, err := a.Attach(ctx, "b", p.ID())
		if err != nil {
			return err
		}
		defer q.Close()
		return q.Started(ctx)
	}
	reach := map[string]error{
		"info":      second(a.Info(ctx, "b")),
		"start":     second(start(t, a, "b", "true").Wait(ctx)),
		"attach":    attach(),
		"stats":     second(protocol.AskAbout(ctx, a, protocol.OpStats, "b", protocol.None{})),
		"execs":     second(protocol.AskAbout(ctx, a, protocol.OpExecs, "b", protocol.None{})),
		"pause":     protocol.Tell(ctx, a, protocol.OpPause, "b", protocol.None{}),
		"resume":    protocol.Tell(ctx, a, protocol.OpResume, "b", protocol.None{}),
		"update":    protocol.Tell(ctx, a, protocol.OpUpdate, "b", spec.Limits{Pids: 20}),
		"network":   second(protocol.AskAbout(ctx, a, protocol.OpNetwork, "b", protocol.NetworkRequest{Sensitivity: spec.SensitivitySecret})),
		"undo":      protocol.Tell(ctx, a, protocol.OpUndo, "b", 1),
		"discard":   protocol.Tell(ctx, a, protocol.OpDiscard, "b", protocol.None{}),
		"snapshot":  protocol.Tell(ctx, a, protocol.OpSnapshot, "b", "s"),
		"workspace": a.SetWorkspace(ctx, "b", t.TempDir()),
	}
	for what, err := range reach {
		if !errors.Is(err, fault.ErrNotFound) {
			t.Errorf("%s of another's: %v", what, err)
		}
	}
	if err := a.Remove(ctx, "b"); err != nil {
		t.Errorf("remove of another's: %v", err)
	}
	if w.core.box("b") == nil {
		t.Error("it was removed")
	}
	for _, reuse := range []bool{false, true} {
		if _, err := a.Create(ctx, protocol.Create{Name: "b", Reuse: reuse}); !errors.Is(err, fault.ErrExists) {
			t.Errorf("create with another's name: %v", err)
		}
	}
	w.core.box("b").set(spec.StateStopped) // and would be replaced
	if _, err := a.Create(ctx, protocol.Create{Name: "b", Reuse: true}); !errors.Is(err, fault.ErrExists) {
		t.Errorf("create with the name of another's that has died: %v", err)
	}
	if i := w.core.box("b").currentInfo(); i.Owner != 1002 {
		t.Error("it was replaced")
	}
	box(t, a, "a2")
	if _, err := a.Create(ctx, protocol.Create{Name: "a3"}); !errors.Is(err, fault.ErrRefused) {
		t.Errorf("one more than allowed: %v", err)
	}
	if i, err := a.Create(ctx, protocol.Create{Name: "a2", Reuse: true}); err != nil || !i.Reused {
		t.Errorf("one's own, at the limit: %+v, %v", i, err)
	}
	if _, err := w.core.Remove(ctx, "a", Condition{}); err != nil { // by another process
		t.Fatal(err)
	}
	box(t, a, "a3")
	nobody := w.client(t, 1003)
	<-nobody.Done()
	if _, err := nobody.List(ctx); !errors.Is(err, fault.ErrRefused) || !strings.Contains(err.Error(), "user 1003") {
		t.Errorf("without a rule: %v", err)
	}
}

// TestThePeerIsWhoConnects connects as another user, by the socket's path.
func TestThePeerIsWhoConnects(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	w := newWorld(t, Rule{User: "1001"})
	path := filepath.Join(t.TempDir(), "s")
	for dir := filepath.Dir(path); dir != "/tmp"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	l, err := Listen(path, 0o666, SameGroup)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error)
	go func() { served <- w.Serve(l.UnixListener) }()
	defer func() {
		l.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	for uid, want := range map[uint32]error{1001: nil, 1002: fault.ErrRefused} {
		c, err := dialAs(t, path, uid)
		if want != nil {
			if !errors.Is(err, want) {
				t.Errorf("as %d: %v", uid, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("as %d: %v", uid, err)
		}
		if i := box(t, c, ""); i.Owner != uid {
			t.Errorf("as %d the owner is %d", uid, i.Owner)
		}
		c.Close()
	}
}

// dialAs connects on a thread that has another user's id.
func dialAs(t *testing.T, path string, uid uint32) (c *protocol.Client, err error) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends here
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
			err = errno
			return
		}
		var fd int
		if fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return
		}
		if err = unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
			unix.Close(fd)
			return
		}
		var conn *net.UnixConn
		if conn, err = descriptor.UnixConn(os.NewFile(uintptr(fd), "client")); err == nil {
			c, err = protocol.NewClient(conn)
		}
	}()
	<-done
	if err != nil {
		return nil, err
	}
	if _, err := c.List(t.Context()); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func TestABoundOfCalls(t *testing.T) {
	w := newWorld(t, Rule{User: "1001", Calls: 3, Descriptors: 100}, Rule{User: "1002"})
	c := w.client(t, 1001)
	box(t, c, "box")
	testhost.Eventually(t, "the call that was answered is over", func() bool { return w.of1001().calls == 0 })
	var hung []*protocol.Process
	for range 3 {
		p := start(t, c, "box", "hang")
		if err := p.Started(t.Context()); err != nil {
			t.Fatal(err)
		}
		hung = append(hung, p)
	}
	if _, err := c.List(t.Context()); !errors.Is(err, fault.ErrRefused) || !strings.Contains(err.Error(), "3 calls") {
		t.Errorf("one more: %v", err)
	}
	if _, err := w.client(t, 1002).List(t.Context()); err != nil {
		t.Errorf("another peer: %v", err)
	}
	hung[0].Close()
	testhost.Eventually(t, "room for a call", func() bool { _, err := c.List(t.Context()); return err == nil })
}

// of1001 is what the user 1001 has in use.
func (w *world) of1001() (use struct{ calls, descriptors int }) {
	w.mu.Lock()
	p := w.peers[1001]
	w.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	use.calls, use.descriptors = p.calls, p.descriptors
	return use
}

func TestEvents(t *testing.T) {
	w := newWorld(t, Rule{User: "1001"})
	root, a := w.client(t, 0), w.client(t, 1001)
	box(t, root, "old")
	events, err := root.Events(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	hers, err := a.Events(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer hers.Close()
	next := func(e *protocol.Events, want spec.EventType, id string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), testhost.Patience)
		defer cancel()
		if got, err := e.Next(ctx); err != nil || got.Type != want || got.ID != id {
			t.Fatalf("got %+v, %v; want %s of %s", got, err, want, id)
		}
	}
	box(t, root, "mine")
	next(events, spec.EventCreated, "mine")
	box(t, a, "hers")
	next(events, spec.EventCreated, "hers")
	next(hers, spec.EventCreated, "hers")
	if _, err := start(t, a, "hers", "oom").Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	next(events, spec.EventOOM, "hers")
	next(hers, spec.EventOOM, "hers")
	if err := root.Remove(t.Context(), "old"); err != nil {
		t.Fatal(err)
	}
	next(events, spec.EventRemoved, "old")
	// Others' doing is found out.
	w.core.box("mine").set(spec.StateStopped)
	next(events, spec.EventDied, "mine")
	if _, err := w.core.Create(t.Context(), protocol.Create{Name: "other"}, Sources{UID: 1001}); err != nil {
		t.Fatal(err)
	}
	next(events, spec.EventCreated, "other")
	next(hers, spec.EventCreated, "other")
	if _, err := w.core.Remove(t.Context(), "other", Condition{}); err != nil {
		t.Fatal(err)
	}
	next(events, spec.EventRemoved, "other")
	next(hers, spec.EventRemoved, "other")
}

func TestASlowSubscriberIsToldWhatItLost(t *testing.T) {
	w := newWorld(t)
	c := w.client(t, 0)
	p := newPeer(everything(0), semaphore.NewWeighted(maxDescriptors))
	s, err := w.events.subscribe(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	defer w.events.unsubscribe(s)
	for i := range queueLength + 10 {
		w.events.created(spec.Info{ID: fmt.Sprint(i), Created: time.Now()})
	}
	if lost := w.events.takeLost(s); lost != 10 || len(s.queue) != queueLength {
		t.Errorf("lost %d, %d wait", lost, len(s.queue))
	}
	_ = c
}

func TestAdoptOpensWhatIsUp(t *testing.T) {
	w := newWorld(t)
	for i, status := range []spec.State{spec.StateRunning, spec.StatePaused, spec.StateStopped} {
		name := fmt.Sprint("b", i)
		if _, err := w.core.Create(t.Context(), protocol.Create{Name: name}, Sources{}); err != nil {
			t.Fatal(err)
		}
		w.core.box(name).set(status)
	}
	w.Adopt(t.Context())
	if w.core.opened != 2 {
		t.Errorf("opened %d", w.core.opened)
	}
}

func TestConnectInOneProcess(t *testing.T) {
	w := newWorld(t)
	conn, err := w.Connect()
	if err != nil {
		t.Fatal(err)
	}
	c, err := protocol.NewClient(conn)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if i := box(t, c, "box"); i.Owner != uint32(os.Geteuid()) {
		t.Errorf("%+v", i)
	}
}

// BenchmarkCall is a call that does nothing, there and back.
func BenchmarkCall(b *testing.B) {
	w := newWorld(b)
	c := w.client(b, 0)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.List(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkExec is what a captured exec costs beside the exec itself.
func BenchmarkExec(b *testing.B) {
	w := newWorld(b)
	c := w.client(b, 0)
	if _, err := c.Create(context.Background(), protocol.Create{Name: "box"}); err != nil {
		b.Fatal(err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer null.Close()
	b.ReportAllocs()
	for b.Loop() {
		p, err := c.Start(context.Background(), "box", spec.Command{Args: []string{"true"}}, [3]*os.File{nil, null, null})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := p.Wait(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}
