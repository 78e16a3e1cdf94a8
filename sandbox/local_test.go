package sandbox_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
	sb := create(t, newLocal(t), sandbox.Config{Workspace: workspace})
	r, err := sb.Run(t.Context(), "pwd")
	if err != nil || string(r.Stdout) != workspace+"\n" || r.Isolation != sandbox.IsolationNone || r.Limits.Memory != "unavailable" {
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
