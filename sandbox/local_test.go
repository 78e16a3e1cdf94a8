package sandbox_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// newLocal is a manager of sandboxes that are none.
func newLocal(t testing.TB) *sandbox.Manager {
	t.Helper()
	m, err := sandbox.NewManager(sandbox.ManagerConfig{Prefer: []string{"local"}})
	if err != nil {
		t.Fatal(err)
	}
	testhost.CloseAfter(t, m)
	return m
}

func create(t testing.TB, m *sandbox.Manager, c sandbox.Config, options ...sandbox.CreateOption) *sandbox.Sandbox {
	t.Helper()
	sb, err := m.Create(t.Context(), c, options...)
	if err != nil {
		t.Fatal(err)
	}
	testhost.CloseAfter(t, sb)
	return sb
}

func command(args ...string) sandbox.Command { return sandbox.Command{Args: args} }

func TestLocalSaysThatNothingIsIsolated(t *testing.T) {
	workspace := filepath.Join(t.TempDir(), "made", "with", "parents")
	sb := create(t, newLocal(t), sandbox.Config{Workspace: workspace, Env: map[string]string{"A": "b", "C": "d"}})
	r, err := sb.Exec(t.Context(), sandbox.Command{
		Args: []string{"sh", "-c", "pwd; echo $A $C; exit 5"}, Env: map[string]string{"C": "e"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Status != sandbox.StatusExited || r.ExitCode != 5 || string(r.Stdout) != workspace+"\nb e\n" || r.OK() {
		t.Errorf("got %+v", r)
	}
	if r.ID != sb.ID() || r.Isolation != sandbox.IsolationNone || r.Limits.Memory != "unavailable" {
		t.Errorf("%s: isolation %s, memory %s", r.ID, r.Isolation, r.Limits.Memory)
	}
	if info, err := sb.Info(t.Context()); err != nil || info.Provider != "local" || info.Isolation != sandbox.IsolationNone {
		t.Errorf("got %+v, %v", info, err)
	}
}

func TestLocalKeepsStateBetweenCommands(t *testing.T) {
	sb := create(t, newLocal(t), sandbox.Config{Workspace: t.TempDir()})
	for _, line := range []string{"echo kept > f", "cat f"} {
		r, err := sb.Run(t.Context(), line)
		if err != nil || !r.OK() {
			t.Fatalf("%s: %+v, %v", line, r, err)
		}
		if line == "cat f" && string(r.Stdout) != "kept\n" {
			t.Errorf("got %q", r.Stdout)
		}
	}
}

// What a command leaves in its group when its time is over, and when it ends,
// has no longer life than that.
func TestLocalEndsTheProcessGroup(t *testing.T) {
	for name, line := range map[string]string{"at the timeout": "wait", "at its end": "exit 3", "when cancelled": "wait"} {
		t.Run(name, func(t *testing.T) {
			config := sandbox.Config{Workspace: t.TempDir()}
			child := filepath.Join(config.Workspace, "child")
			end := func() (begun bool) {
				sb := create(t, newLocal(t), config)
				p, err := sb.Start(t.Context(), command("sh", "-c", "echo out; sleep 1000 & echo $! > pid; mv pid child; "+line))
				if err != nil {
					t.Fatal(err)
				}
				if name == "when cancelled" {
					waitForFile(t, child)
					if err := p.Kill(); err != nil {
						t.Fatal(err)
					}
				}
				r, err := p.Wait()
				want := map[string]sandbox.Status{"at the timeout": sandbox.StatusTimedOut, "at its end": sandbox.StatusExited, "when cancelled": sandbox.StatusSignaled}[name]
				if err != nil || r.Status != want {
					t.Fatalf("got %+v, %v", r, err)
				}
				_, err = os.Stat(child)
				return err == nil
			}
			if name != "at the timeout" {
				end()
			} else {
				timeoutLongEnough(t, func(timeout time.Duration) bool {
					config.Timeout = sandbox.Duration(timeout)
					return end()
				})
			}
			waitUntilGone(t, waitForFile(t, child))
		})
	}
}

func waitForFile(t *testing.T, path string) string {
	t.Helper()
	var text []byte
	testhost.Eventually(t, path+" comes", func() (there bool) {
		var err error
		text, err = os.ReadFile(path)
		return err == nil
	})
	return strings.TrimSpace(string(text))
}

// waitUntilGone waits for a process that was killed but is somebody else's to
// reap.
func waitUntilGone(t *testing.T, pid string) {
	t.Helper()
	testhost.Eventually(t, "process "+pid+" is gone", func() bool {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}

func TestLocalTellsSignalsApart(t *testing.T) {
	sb := create(t, newLocal(t), sandbox.Config{})
	r, err := sb.Run(t.Context(), "kill -USR1 $$")
	if err != nil || r.Status != sandbox.StatusSignaled || r.Signal != "SIGUSR1" || r.ExitCode != 128+int(unix.SIGUSR1) {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestLocalRefusesWhatItCannotKeep(t *testing.T) {
	for name, config := range map[string]sandbox.Config{
		"rootfs":   {Rootfs: "/"},
		"binds":    {Binds: []sandbox.Bind{{Source: "/a", Target: "/b"}}},
		"limits":   {Limits: sandbox.Limits{Memory: 1 << 30}},
		"pid":      {PID: sandbox.PIDPrivate},
		"network":  {Network: sandbox.NetworkNone},
		"user":     {User: &sandbox.User{}},
		"cwd":      {Cwd: "/"},
		"hostname": {Hostname: "box"},
		"seccomp":  {Seccomp: "strict"},
	} {
		t.Run(name, func(t *testing.T) {
			var wrong *sandbox.ConfigError
			if sb, err := newLocal(t).Create(t.Context(), config); !errors.As(err, &wrong) {
				t.Errorf("got %v, %v", sb, err)
			}
		})
	}
	for name, c := range map[string]sandbox.Command{
		"limits":      {Limits: sandbox.Limits{Memory: 1 << 30}},
		"user":        {User: &sandbox.User{}},
		"groups":      {Groups: []uint32{4}},
		"cwd":         {Cwd: "/"},
		"terminal":    {Terminal: &sandbox.Winsize{}},
		"detached":    {Detached: true},
		"transaction": {Transaction: true},
	} {
		t.Run("command/"+name, func(t *testing.T) {
			c.Args = []string{"true"}
			var wrong *sandbox.ConfigError
			if _, err := create(t, newLocal(t), sandbox.Config{}).Start(t.Context(), c); !errors.As(err, &wrong) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestCommandThatCannotBeRunIsAResult(t *testing.T) {
	file := filepath.Join(t.TempDir(), "not-executable")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	sb := create(t, newLocal(t), sandbox.Config{})
	for name, code := range map[string]int{"no-such-command": 127, "/no/such/file": 127, file: 126} {
		r, err := sb.Exec(t.Context(), command(name))
		if err != nil || r.Status != sandbox.StatusError || r.ExitCode != -1 || !strings.Contains(r.Reason, name) || r.ID != sb.ID() {
			t.Errorf("%s: got %+v, %v", name, r, err)
		}
		p, err := sb.Start(t.Context(), command(name))
		if err != nil {
			t.Fatal(err)
		}
		var notRun *sandbox.NotRunError
		if err := p.Started(t.Context()); !errors.As(err, &notRun) || notRun.Code != code {
			t.Errorf("%s: Started says %v", name, err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestLocalWorkspaceThatWentAwayIsNamed(t *testing.T) {
	workspace := filepath.Join(t.TempDir(), "w")
	sb := create(t, newLocal(t), sandbox.Config{Workspace: workspace})
	if err := os.Remove(workspace); err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Run(t.Context(), "true"); err == nil || !strings.Contains(err.Error(), workspace) {
		t.Errorf("got %v", err)
	}
}

func TestCloseEndsWhatRuns(t *testing.T) {
	m := newLocal(t)
	sb := create(t, m, sandbox.Config{})
	p, err := sb.Start(t.Context(), command("sleep", "1000"))
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	if r, err := p.Wait(); err != nil || r.Status != sandbox.StatusLost {
		t.Errorf("got %+v, %v", r, err)
	}
	if err := sb.Close(); err != nil {
		t.Errorf("again: %v", err)
	}
	if _, err := sb.Run(t.Context(), "true"); !errors.Is(err, sandbox.ErrClosed) || !strings.Contains(err.Error(), sb.ID()) {
		t.Errorf("got %v", err)
	}
	if _, err := m.Get(t.Context(), sb.ID()); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("got %v", err)
	}
}
