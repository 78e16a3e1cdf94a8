package integration

import (
	"archive/tar"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// interrupt asks a process to end and waits for it.
func interrupt(t *testing.T, r *testProcess) {
	t.Helper()
	if !r.ended() {
		_ = r.cmd.Process.Signal(syscall.SIGTERM)
	}
	r.wait()
}

// removeGround removes what a daemon that was stopped keeps for its next
// start outside its own folder: a parent cgroup and files in /run.
func removeGround(t *testing.T, group string, dirs ...string) {
	t.Helper()
	hierarchies, err := cgroupHierarchies()
	if err != nil {
		t.Fatal(err)
	}
	if err := removeCgroups(hierarchies, group); err != nil {
		t.Error(err)
	}
	for _, dir := range dirs {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	}
}

// importRoot gives the busybox root as a tar to the command's stdin.
func importRoot(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	root, err := busyboxRoot()
	if err != nil {
		t.Fatal(err)
	}
	r, w := io.Pipe()
	go func() {
		tw := tar.NewWriter(w)
		err := tw.AddFS(os.DirFS(root))
		if err == nil {
			err = tw.Close()
		}
		w.CloseWithError(err)
	}()
	cmd.Stdin = r
	if got := run(t, cmd); got.code != 0 {
		t.Fatalf("import: %s", got.stderr)
	}
}
