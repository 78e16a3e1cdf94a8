package launcher

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

var errCancelled = context.Canceled

// cancelled is a context that has ended.
func cancelled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// deadProcess is the identity of a process that has ended.
func deadProcess(t *testing.T) identity {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	i, err := identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // killed
	return i
}

func leafOptions(sb *Sandbox) cgroups.LeafOptions {
	return cgroups.LeafOptions{Owner: hostID(sb.live.current().UIDMappings, spec.AgentID)}
}

// joinLeaf has a process of the host in a leaf.
func joinLeaf(t *testing.T, leaf *cgroups.Leaf) identity {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	})
	i, err := identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	dir, tasks := leaf.Join()
	if dir != nil {
		procs, err := os.OpenFile(filepath.Join(dir.Name(), "cgroup.procs"), os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer procs.Close()
		tasks = []*os.File{procs}
	}
	for _, f := range tasks {
		if _, err := f.WriteString(strconv.Itoa(i.Pid)); err != nil {
			t.Fatal(err)
		}
	}
	return i
}
