package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// contextCall is a call with a context of a manager, or of a sandbox with an overlay.
type contextCall struct {
	name string
	do   func(context.Context, *sandbox.Manager, *sandbox.Sandbox) error
}

// contextCalls are all calls of this package that take a context and need an answer of the launcher.
var contextCalls = []contextCall{
	{"Create", func(ctx context.Context, m *sandbox.Manager, _ *sandbox.Sandbox) error {
		return second(m.Create(ctx, sandbox.Config{}))
	}},
	{"Up", func(ctx context.Context, m *sandbox.Manager, _ *sandbox.Sandbox) error {
		return second(m.Up(ctx, "other", sandbox.Config{}))
	}},
	{"Get", func(ctx context.Context, m *sandbox.Manager, s *sandbox.Sandbox) error {
		return second(m.Get(ctx, s.ID()))
	}},
	{"List", func(ctx context.Context, m *sandbox.Manager, _ *sandbox.Sandbox) error { return second(m.List(ctx)) }},
	{"Remove", func(ctx context.Context, m *sandbox.Manager, _ *sandbox.Sandbox) error { return m.Remove(ctx, "other") }},
	{"Events", func(ctx context.Context, m *sandbox.Manager, _ *sandbox.Sandbox) error {
		events, err := m.Events(ctx)
		if err != nil {
			return err
		}
		defer events.Close()
		return second(events.Next(ctx))
	}},
	{"Snapshots", func(ctx context.Context, m *sandbox.Manager, _ *sandbox.Sandbox) error {
		return second(m.Snapshots(ctx))
	}},
	{"RemoveSnapshot", func(ctx context.Context, m *sandbox.Manager, _ *sandbox.Sandbox) error {
		return m.RemoveSnapshot(ctx, "other")
	}},
	{"PoolStats", func(ctx context.Context, m *sandbox.Manager, _ *sandbox.Sandbox) error {
		return second(m.PoolStats(ctx))
	}},
	{"ResizePool", func(ctx context.Context, m *sandbox.Manager, _ *sandbox.Sandbox) error {
		return second(m.ResizePool(ctx, sandbox.PoolConfig{}))
	}},
	{"Images", func(ctx context.Context, m *sandbox.Manager, _ *sandbox.Sandbox) error { return second(m.Images(ctx)) }},
	{"Image", func(ctx context.Context, m *sandbox.Manager, _ *sandbox.Sandbox) error {
		return second(m.Image(ctx, "busybox"))
	}},
	{"PullImage", func(ctx context.Context, m *sandbox.Manager, _ *sandbox.Sandbox) error {
		return second(m.PullImage(ctx, "dir:"+emptyDir, sandbox.PullOptions{Name: "other"}))
	}},
	{"RemoveImage", func(ctx context.Context, m *sandbox.Manager, _ *sandbox.Sandbox) error {
		return second(m.RemoveImage(ctx, "busybox"))
	}},
	{"PruneImages", func(ctx context.Context, m *sandbox.Manager, _ *sandbox.Sandbox) error {
		return second(m.PruneImages(ctx))
	}},
	{"VerifyImage", func(ctx context.Context, m *sandbox.Manager, _ *sandbox.Sandbox) error {
		return m.VerifyImage(ctx, "busybox")
	}},
	{"Info", ofSandbox(func(ctx context.Context, s *sandbox.Sandbox) error { return second(s.Info(ctx)) })},
	{"Execs", ofSandbox(func(ctx context.Context, s *sandbox.Sandbox) error { return second(s.Execs(ctx)) })},
	{"Attach", ofSandbox(func(ctx context.Context, s *sandbox.Sandbox) error {
		return second(s.Attach(ctx, "1-1", nil, nil))
	})},
	{"Logs", ofSandbox(func(ctx context.Context, s *sandbox.Sandbox) error {
		return s.Logs(ctx, "1-1", io.Discard, io.Discard, true)
	})},
	{"Stats", ofSandbox(func(ctx context.Context, s *sandbox.Sandbox) error { return second(s.Stats(ctx)) })},
	{"Pause", ofSandbox(func(ctx context.Context, s *sandbox.Sandbox) error { return s.Pause(ctx) })},
	{"Resume", ofSandbox(func(ctx context.Context, s *sandbox.Sandbox) error { return s.Resume(ctx) })},
	{"Update", ofSandbox(func(ctx context.Context, s *sandbox.Sandbox) error {
		return s.Update(ctx, sandbox.Limits{Pids: 100})
	})},
	{"SetWorkspace", ofSandbox(func(ctx context.Context, s *sandbox.Sandbox) error { return s.SetWorkspace(ctx, emptyDir) })},
	{"Dial", ofSandbox(func(ctx context.Context, s *sandbox.Sandbox) error { return second(s.Dial(ctx, "tcp", ":80")) })},
	{"Undo", ofSandbox(func(ctx context.Context, s *sandbox.Sandbox) error { return s.Undo(ctx, 1) })},
	{"Snapshot", ofSandbox(func(ctx context.Context, s *sandbox.Sandbox) error { return s.Snapshot(ctx, "other") })},
	{"Discard", ofSandbox(func(ctx context.Context, s *sandbox.Sandbox) error { return s.Discard(ctx) })},
	{"SetNetwork", ofSandbox(func(ctx context.Context, s *sandbox.Sandbox) error {
		return second(s.SetNetwork(ctx, sandbox.NetworkGrant{}))
	})},
	{"RaiseSensitivity", ofSandbox(func(ctx context.Context, s *sandbox.Sandbox) error { return second(s.RaiseSensitivity(ctx, "")) })},
	{"NetworkEvents", ofSandbox(func(ctx context.Context, s *sandbox.Sandbox) (err error) {
		for _, err = range s.NetworkEvents(ctx, true) {
		}
		return err
	})},
	{"DecideNetwork", ofSandbox(func(ctx context.Context, s *sandbox.Sandbox) error { return s.DecideNetwork(ctx, nil) })},
	{"Changes", ofSandbox(func(ctx context.Context, s *sandbox.Sandbox) error { return second(s.Changes(ctx)) })},
	{"Start detached", ofSandbox(func(ctx context.Context, s *sandbox.Sandbox) error {
		return second(s.Start(ctx, sandbox.Command{Args: []string{"true"}, Detached: true}))
	})},
	{"ReadFile", ofFiles(func(ctx context.Context, f *sandbox.Files) error { return second(f.ReadFile(ctx, "f")) })},
	{"Open", ofFiles(func(ctx context.Context, f *sandbox.Files) error { return second(f.Open(ctx, "f", 0, 1)) })},
	{"WriteFile", ofFiles(func(ctx context.Context, f *sandbox.Files) error { return f.WriteFile(ctx, "f", nil, 0) })},
	{"Stat", ofFiles(func(ctx context.Context, f *sandbox.Files) error { return second(f.Stat(ctx, "f")) })},
	{"Lstat", ofFiles(func(ctx context.Context, f *sandbox.Files) error { return second(f.Lstat(ctx, "f")) })},
	{"ReadDir", ofFiles(func(ctx context.Context, f *sandbox.Files) (err error) {
		for _, err = range f.ReadDir(ctx, "/") {
		}
		return err
	})},
	{"Mkdir", ofFiles(func(ctx context.Context, f *sandbox.Files) error { return f.Mkdir(ctx, "f", 0o755) })},
	{"MkdirAll", ofFiles(func(ctx context.Context, f *sandbox.Files) error { return f.MkdirAll(ctx, "f", 0o755) })},
	{"Rename", ofFiles(func(ctx context.Context, f *sandbox.Files) error { return f.Rename(ctx, "f", "g") })},
	{"Remove of a file", ofFiles(func(ctx context.Context, f *sandbox.Files) error { return f.Remove(ctx, "f") })},
	{"RemoveAll", ofFiles(func(ctx context.Context, f *sandbox.Files) error { return f.RemoveAll(ctx, "f") })},
	{"Symlink", ofFiles(func(ctx context.Context, f *sandbox.Files) error { return f.Symlink(ctx, "f", "g") })},
	{"Chmod", ofFiles(func(ctx context.Context, f *sandbox.Files) error { return f.Chmod(ctx, "f", 0o600) })},
	{"Watch", ofFiles(func(ctx context.Context, f *sandbox.Files) error { return second(f.Watch(ctx, "/")) })},
}

// commandCalls run a command: a context that ends later ends the command, and is no error.
var commandCalls = []contextCall{
	{"Run", ofSandbox(func(ctx context.Context, s *sandbox.Sandbox) error { return second(s.Run(ctx, "true")) })},
	{"Exec", ofSandbox(func(ctx context.Context, s *sandbox.Sandbox) error {
		return second(s.Exec(ctx, sandbox.Command{Args: []string{"true"}}))
	})},
	{"Start", ofSandbox(func(ctx context.Context, s *sandbox.Sandbox) error {
		return second(s.Start(ctx, sandbox.Command{Args: []string{"true"}}))
	})},
}

// emptyDir is a directory without files that no call changes.
var emptyDir string

func second[T any](_ T, err error) error { return err }

func ofSandbox(do func(context.Context, *sandbox.Sandbox) error) func(context.Context, *sandbox.Manager, *sandbox.Sandbox) error {
	return func(ctx context.Context, _ *sandbox.Manager, s *sandbox.Sandbox) error { return do(ctx, s) }
}

func ofFiles(do func(context.Context, *sandbox.Files) error) func(context.Context, *sandbox.Manager, *sandbox.Sandbox) error {
	return func(ctx context.Context, _ *sandbox.Manager, s *sandbox.Sandbox) error { return do(ctx, s.Files()) }
}

// listeningLauncher starts a launcher with a pool, and returns the launcher's process and a manager of the launcher.
func listeningLauncher(t *testing.T) (*os.Process, *sandbox.Manager) {
	t.Helper()
	needLauncher(t)
	socket := filepath.Join(t.TempDir(), "socket")
	// The program itself, not the script: signals are for the launcher.
	cmd := exec.Command(world.program, "--root", world.dir+"/state", "--data", world.dir+"/data", "launcher", "--socket", socket)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = errors.Join(cmd.Process.Signal(syscall.SIGCONT), cmd.Process.Signal(syscall.SIGTERM))
		_ = cmd.Wait()
	})
	for {
		m, err := sandbox.OpenManager(t.Context(), sandbox.ManagerConfig{Socket: socket})
		if err == nil {
			testhost.CloseAfter(t, m)
			return cmd.Process, m
		}
		if !errors.Is(err, sandbox.ErrUnavailable) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestTheEndOfAContextIsToldByEachCall(t *testing.T) {
	launcher, m := listeningLauncher(t)
	dir := t.TempDir()
	emptyDir = t.TempDir()
	sb, err := m.Create(t.Context(), sandbox.Config{Overlays: []string{dir}, Storage: sandbox.StorageDisk})
	if err != nil {
		t.Fatal(err)
	}
	testhost.CloseAfter(t, sb)
	if _, err := sb.Run(t.Context(), "echo 1 > "+dir+"/f"); err != nil {
		t.Fatal(err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	caused, cancelCaused := context.WithCancelCause(t.Context())
	cancelCaused(errors.New("the user went home"))
	for _, c := range append(contextCalls, commandCalls...) {
		for name, ctx := range map[string]context.Context{"canceled": canceled, "late": late, "canceled with a cause": caused} {
			if err := c.do(ctx, m, sb); !errors.Is(err, ctx.Err()) {
				t.Errorf("%s with a context that is %s: %v", c.name, name, err)
			}
		}
	}
	changes, err := sb.Changes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer changes.Close()
	if _, err := changes.Apply(canceled, sandbox.ApplyOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Apply: %v", err)
	}

	if err := launcher.Signal(syscall.SIGSTOP); err != nil { // until then no call waits
		t.Fatal(err)
	}
	defer launcher.Signal(syscall.SIGCONT) // for the clean-up
	awaitStopped(t, launcher.Pid)
	for _, c := range contextCalls {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, errors.New("the user went home"))
		if err := c.do(ctx, m, sb); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s of a launcher that does not answer: %v", c.name, err)
		}
		cancel()
	}
}

// awaitStopped returns when a signal has stopped a process.
func awaitStopped(t *testing.T, pid int) {
	t.Helper()
	for {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(stat), "\nState:\tT ") {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// A launcher of the program's own has to start first.
func TestTheEndOfAContextIsToldDuringTheStartOfALauncher(t *testing.T) {
	needLauncher(t)
	for name, launcher := range map[string][]string{
		"a launcher":                     launcherOnly().Launcher,
		"a program that does not answer": {"sleep", "1000"},
	} {
		m, err := sandbox.NewManager(sandbox.ManagerConfig{Prefer: []string{sandbox.ProviderLocal}, Launcher: launcher})
		if err != nil {
			t.Fatal(err)
		}
		testhost.CloseAfter(t, m)
		late, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := m.Create(late, sandbox.Config{}, sandbox.Using(sandbox.ProviderIsolated)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s, too late: %v", name, err)
		}
		canceled, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		if _, err := m.Create(canceled, sandbox.Config{}, sandbox.Using(sandbox.ProviderIsolated)); !errors.Is(err, context.Canceled) {
			t.Errorf("%s, canceled: %v", name, err)
		}
	}
}
