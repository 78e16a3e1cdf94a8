package agent

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAgentHoldsTheStore where the host finds it, as long as it lives, and lets no
// command have it.
func TestAgentHoldsTheStore(t *testing.T) {
	dir, top := t.TempDir(), t.TempDir()
	s := open(t, func(c *exec.Cmd) { c.ExtraFiles[3], c.ExtraFiles[4] = openPath(t, dir), openDir(t, top) })
	for number, want := range map[int]string{7: dir, 8: top} {
		held := fmt.Sprintf("/proc/%d/fd/%d", s.cmd.Process.Pid, number)
		if to, err := os.Readlink(held); err != nil || to != want {
			t.Errorf("%s is %q, %v", held, to, err)
		}
		if list := s.mustRun(t, command("ls", "-l", "/proc/self/fd")); strings.Contains(list, want) || strings.Contains(list, fmt.Sprintf(" %d ->", number)) {
			t.Errorf("a command has %s", list)
		}
		if out, exit := s.run(t, command("ls", "-L", fmt.Sprintf("/proc/1/fd/%d", number))); exit.Status == 0 {
			t.Errorf("a command looks into it: %q", out)
		}
	}
}

// TestHostTakesTheStoreToSync has the host take the agent's own open file, and sync
// the file system with it.
func TestHostTakesTheStoreToSync(t *testing.T) {
	dir := openDir(t, t.TempDir())
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil { // of the open file, as its errors are
		t.Fatal(err)
	}
	s := open(t, func(c *exec.Cmd) { c.ExtraFiles[4] = dir })
	pidfd, err := unix.PidfdOpen(s.cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	fd, err := unix.PidfdGetfd(pidfd, 8, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Syncfs(fd); err != nil {
		t.Errorf("syncfs: %v", err)
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Errorf("it is another open file: %v", err)
	}
}

func openDir(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func openPath(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return f
}
