package testhost

import (
	_ "embed"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

//go:embed testdata/headless.c
var headless string

// Headless compiles a static program whose main thread ends while another thread runs. The other thread
// then prints "ready". It ends the process with status 7: at once if the argument is "once", else at
// SIGTERM.
func Headless(t testing.TB) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "headless")
	cmd := exec.Command("cc", "-static", "-pthread", "-O1", "-Wall", "-Wextra", "-Werror", "-x", "c", "-o", path, "-")
	cmd.Stdin = strings.NewReader(headless)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("compile headless.c: %v: %s", err, out)
	}
	return path
}
