package launcher

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
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
func deadProcess(t *testing.T) process.ID {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	i, err := process.Of(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // killed
	return i
}

func leafOptions(sb *Sandbox) cgroups.LeafOptions {
	return cgroups.LeafOptions{Owner: record.HostID(sb.session.Current().UIDMappings, spec.AgentID)}
}

// joinLeaf has a process of the host in a leaf.
func joinLeaf(t *testing.T, leaf *cgroups.Leaf) process.ID {
	t.Helper()
	i := hostProcess(t)
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

// layersOf are the trees of a sandbox with their lists, as a client has them.
func layersOf(t *testing.T, sb *Sandbox, unprivileged bool) (trees []layer.Overlay, err error) {
	t.Helper()
	held, err := sb.Layers(t.Context(), unprivileged)
	if err != nil {
		return nil, err
	}
	for _, h := range held {
		tree := h.Overlay
		var list bytes.Buffer
		if h.Stamped() {
			err = errors.Join(err, h.WriteStamps(&list))
			stamps, decoded := protocol.DecodeStamps(list.Bytes())
			tree.Stamps, err = stamps, errors.Join(err, decoded, h.stamps.Close())
		}
		for i := range h.plain {
			list.Reset()
			err = errors.Join(err, h.WriteMarks(t.Context(), i, &list))
			marks, decoded := protocol.DecodeMarks(list.Bytes())
			tree.Layers[i].Marks, err = marks, errors.Join(err, decoded, closeOther(h.plain[i], tree.Layers[i].Dir))
		}
		trees = append(trees, tree)
	}
	if err != nil {
		closeTrees(trees)
		return nil, err
	}
	return trees, nil
}
