package launcher_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testhost"
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
