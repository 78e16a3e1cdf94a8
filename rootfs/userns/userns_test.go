package userns

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// The child that a namespace begins in never runs, and is reaped.
func TestUserNamespaceLeavesNoProcess(t *testing.T) {
	testhost.NeedRoot(t, "user namespaces are made")
	var spaces Namespaces
	maps := make([]Map, 8)
	for i := range maps {
		ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: other + i<<16, Size: 1 << 16}}
		maps[i] = Map{ids, ids}
		spaces.Start(maps[i])
	}
	for _, m := range maps {
		if fd, err := spaces.Descriptor(m); err != nil || fd < 0 {
			t.Error(fd, err)
		}
	}
	spaces.Close()
	children, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", os.Getpid()))
	if err == nil && len(children) > 0 {
		t.Errorf("children: %s", children)
	}
}

// A child stands still, and kill(2) had no effect. The child ends, and runs nothing.
func TestAStoppedChildEnds(t *testing.T) {
	runtime.LockOSThread() // the tracer
	defer runtime.UnlockOSThread()
	out := filepath.Join(t.TempDir(), "out")
	pid, err := syscall.ForkExec("/bin/sh", []string{"sh", "-c", "echo ran > " + out}, &syscall.ProcAttr{
		Env: []string{}, Sys: &syscall.SysProcAttr{Ptrace: true, Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		t.Fatal(err)
	}
	reap(pid)
	if err := syscall.Kill(pid, 0); err == nil {
		t.Error("the child is still there")
	}
	if _, err := os.Stat(out); !os.IsNotExist(err) {
		t.Errorf("the child ran: %v", err)
	}
}
