package integration

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// A hundred sandboxes in the proxied network at once: each reaches its name and no other one, and nothing of them
// stays.
func TestHundredProxiedSandboxesAtOnce(t *testing.T) {
	testhost.Long(t)
	need(t, world())
	w := newFarWorld(t)
	before := w.traces(t)
	c := newClientBy(w.sandboxes, func(cmd *exec.Cmd) *exec.Cmd { return netnstest.Command(cmd, w.host) })
	boxes := make([]*sandbox.Sandbox, 100)
	names := []string{nearName, sisterName}
	begin := time.Now()
	var making sync.WaitGroup
	for i := range boxes {
		making.Go(func() {
			box, err := c.Create(t.Context(), sandbox.Config{Storage: sandbox.StorageMemory, Allow: []string{names[i%2]}})
			if err != nil {
				t.Error(err)
				return
			}
			boxes[i] = box
		})
	}
	making.Wait()
	if t.Failed() {
		t.FailNow()
	}
	t.Logf("%d sandboxes in %v", len(boxes), time.Since(begin))
	begin = time.Now()
	var asking sync.WaitGroup
	for i, box := range boxes {
		asking.Go(func() {
			for n, name := range []string{names[i%2], names[1-i%2]} {
				r, err := box.Exec(t.Context(), curls("http://"+name))
				if isOwn := n == 0; err != nil || r.OK() != isOwn || isOwn && string(r.Stdout) != name+"\n" || r.ExitCode == 28 {
					t.Errorf("sandbox %d: %s: %+v, %v", i, name, r, err)
				}
			}
		})
	}
	asking.Wait()
	t.Logf("each has asked twice in %v", time.Since(begin))
	w.hasSeenOnly(t, fmt.Sprintf("%s at %s:80", nearName, worldServer), fmt.Sprintf("%s at %s:80", sisterName, worldServer))
	begin = time.Now()
	closeAll(t, boxes)
	t.Logf("gone in %v", time.Since(begin))
	c.end()
	w.isBack(t, "after the last one", before)
	w.awaitEgressEnd(t)
	if left, err := filepath.Glob(filepath.Join(w.root, "@egress", "boxes", "*")); err != nil || len(left) != 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}
