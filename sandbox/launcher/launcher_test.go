package launcher_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox/launcher"
)

// The test's binary is a program that is its own launcher.
func TestMain(m *testing.M) {
	launcher.Main()
	os.Exit(m.Run())
}

func TestProgramIsItsOwnLauncher(t *testing.T) {
	testhost.NeedRoot(t, "mounts and cgroups")
	dirs := launcher.Dirs{State: t.TempDir(), Data: t.TempDir()}
	m, err := sandbox.NewManager(sandbox.ManagerConfig{Launcher: launcher.Command(dirs)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.PoolStats(t.Context()); !errors.As(err, new(*sandbox.ConfigError)) {
		t.Errorf("the counts of no pool: %v", err)
	}
	sb, err := m.Create(t.Context(), sandbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := sb.Run(t.Context(), "echo $((6 * 7)); id -u")
	if err != nil || string(r.Stdout) != "42\n1000\n" || r.Isolation != sandbox.IsolationFull {
		t.Errorf("got %+v, %v", r, err)
	}
	if err := sb.Close(); err != nil {
		t.Error(err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

// A launcher with a pool: the second sandbox of a kind is there before the call.
func TestProgramHasAPool(t *testing.T) {
	testhost.NeedRoot(t, "mounts and cgroups")
	dirs := launcher.Dirs{State: t.TempDir(), Data: t.TempDir()}
	m, err := sandbox.NewManager(sandbox.ManagerConfig{
		Launcher: launcher.Command(dirs), Pool: &sandbox.PoolConfig{Min: 1, WarmUp: 1, Max: 4},
	})
	if err != nil {
		t.Fatal(err)
	}
	run := func() {
		t.Helper()
		sb, err := m.Create(t.Context(), sandbox.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if r, err := sb.Run(t.Context(), "echo here"); err != nil || string(r.Stdout) != "here\n" {
			t.Errorf("%+v, %v", r, err)
		}
		if err := sb.Close(); err != nil {
			t.Error(err)
		}
	}
	stats := func() sandbox.PoolStats {
		t.Helper()
		s, err := m.PoolStats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	run()
	testhost.Eventually(t, "blanks of both kinds", func() bool { return stats().Ready >= 2 })
	for range 5 { // on a busy machine a blank can answer too late
		if run(); stats().Hits > 0 {
			break
		}
	}
	for reason := range stats().Misses {
		if reason != "empty" && reason != "stale" {
			t.Errorf("a miss because of %s", reason)
		}
	}
	if s := stats(); s.Hits != 1 || s.Misses["empty"] < 1 || s.AverageClaim <= 0 {
		t.Errorf("%+v", s)
	}
	if s, err := m.ResizePool(t.Context(), sandbox.PoolConfig{Max: 1}); err != nil || s.Config.Max != 1 || s.Config.Min != 1 {
		t.Errorf("%+v, %v", s, err)
	}
	wrong := sandbox.PoolConfig{Min: 3, Max: 2}
	_, resize := m.ResizePool(t.Context(), wrong)
	_, open := sandbox.NewManager(sandbox.ManagerConfig{Launcher: launcher.Command(dirs), Pool: &wrong})
	for _, err := range []error{resize, open} {
		if !errors.As(err, new(*sandbox.ConfigError)) || !errors.As(err, new(*sandbox.FieldError)) {
			t.Errorf("more than the most: %v", err)
		}
	}
	testhost.Eventually(t, "fewer blanks", func() bool { return stats().Total <= 1 })
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	for _, dir := range []string{filepath.Join(dirs.State, "@sandboxes"), filepath.Join(dirs.Data, "stores")} {
		left, err := filepath.Glob(filepath.Join(dir, "*.img"))
		names, readErr := os.ReadDir(dir)
		if filepath.Base(dir) == "stores" {
			names = nil
		}
		if err != nil || readErr != nil || len(left)+len(names) > 0 {
			t.Errorf("left: %v %v, %v", left, names, errors.Join(err, readErr))
		}
	}
}

func TestLauncherRefusesSandboxesOfOthers(t *testing.T) {
	testhost.NeedRoot(t, "a directory of another user")
	dirs := launcher.Dirs{State: t.TempDir(), Data: t.TempDir()}
	sandboxes := filepath.Join(dirs.State, "@sandboxes")
	if err := errors.Join(os.Mkdir(sandboxes, 0o700), os.Chown(sandboxes, 4242, 4242)); err != nil {
		t.Fatal(err)
	}
	command := launcher.Command(dirs)
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "belongs to user 4242") {
		t.Errorf("got %s, %v", out, err)
	}
}

func TestLauncherRefusesAWrongRange(t *testing.T) {
	command := launcher.Command(launcher.Dirs{NetworkRange: "10.0.0.0/24"})
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "NetworkRange: 10.0.0.0/24 has no room") {
		t.Errorf("got %s, %v", out, err)
	}
}

func TestLauncherRefusesWrongOptions(t *testing.T) {
	testhost.NeedRoot(t, "cgroups")
	command := launcher.Command(launcher.Dirs{State: t.TempDir(), Data: t.TempDir()})
	for want, options := range map[string][]string{
		"option --pool: max: 2000 is not between 1 and 1000": {"--pool", "max=2000"},
		`unknown options ["--pool"]`:                         {"--pool"},
	} {
		args := slices.Concat(command[1:], options)
		if out, err := exec.Command(command[0], args...).CombinedOutput(); err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%q: %s, %v", options, out, err)
		}
	}
}

func TestLauncherSaysWhatItMisses(t *testing.T) {
	command := launcher.Command(launcher.Dirs{})
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "descriptor 3") {
		t.Errorf("without a connection: %s, %v", out, err)
	}
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	with := exec.Command(command[0], command[1:]...)
	with.ExtraFiles = []*os.File{file}
	if out, err := with.CombinedOutput(); err == nil || !strings.Contains(string(out), "descriptor 3") {
		t.Errorf("with something else: %s, %v", out, err)
	}
}
