package sandbox_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// noLauncher says why there is none, empty if there is one.
var noLauncher string

// world is what the tests' launchers have of their own.
var world struct{ dir, program string }

// TestMain puts a launcher on the PATH, built from this source, whose sandboxes
// are in a directory of the tests' own: examples are then what they would be in
// a program.
func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	var err error
	if noLauncher, err = prepare(); err != nil {
		fmt.Fprintln(os.Stderr, "a launcher for the tests:", err)
		return 1
	}
	if noLauncher != "" {
		// TestExamplesHaveALauncher says so.
		if err := flag.Set("test.skip", "^Example($|Sandbox|Manager)"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}
	defer os.RemoveAll(world.dir)
	code := m.Run()
	if left := remove(); left != "" {
		fmt.Fprintln(os.Stderr, "left by the tests:", left)
		return 1
	}
	return code
}

func prepare() (lacking string, err error) {
	if os.Geteuid() != 0 {
		return "needs root, for mounts and cgroups", nil
	}
	if world.dir, err = os.MkdirTemp("", "sandbox-test"); err != nil {
		return "", err
	}
	bin := filepath.Join(world.dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		return "", err
	}
	world.program = filepath.Join(world.dir, "program")
	build := exec.Command("go", "build", "-tags", "seccomp netgo osusergo urfave_cli_no_template", "-o", world.program, "../cmd/sandbox-runtime")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return "", err
	}
	script := fmt.Sprintf("#!/bin/sh\nexec %s --root %s/state --data %s/data \"$@\"\n", world.program, world.dir, world.dir)
	if err := os.WriteFile(filepath.Join(bin, "sandbox-runtime"), []byte(script), 0o755); err != nil {
		return "", err
	}
	return "", os.Setenv("PATH", bin+":"+os.Getenv("PATH"))
}

// remove removes what tests have left behind, and tells.
func remove() string {
	m, err := sandbox.NewManager(launcherOnly())
	if err != nil {
		return err.Error()
	}
	defer m.Close()
	infos, err := m.List(context.Background())
	if err != nil {
		return err.Error()
	}
	var left []string
	for _, i := range infos {
		left = append(left, i.ID)
		if err := m.Remove(context.Background(), i.ID); err != nil {
			left = append(left, err.Error())
		}
	}
	return strings.Join(left, ", ")
}

// launcherOnly is a manager's configuration that no launcher of the host's
// comes into.
func launcherOnly() sandbox.ManagerConfig {
	return sandbox.ManagerConfig{Launcher: []string{"sandbox-runtime", "launcher", "--fd", "3"}}
}

func needLauncher(t testing.TB) {
	t.Helper()
	if noLauncher != "" {
		t.Skip(noLauncher)
	}
}

func TestExamplesHaveALauncher(t *testing.T) { needLauncher(t) }

// newIsolated is a manager of real sandboxes.
func newIsolated(t testing.TB) *sandbox.Manager {
	t.Helper()
	needLauncher(t)
	m, err := sandbox.NewManager(launcherOnly())
	if err != nil {
		t.Fatal(err)
	}
	testhost.CloseAfter(t, m)
	return m
}
