package testhost

import (
	"os/exec"
	"testing"
)

// Sleeping starts a process that runs until it is killed, at the latest at the end of the test.
func Sleeping(t testing.TB) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	})
	return cmd
}
