package cgroups

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

func TestParentIsReadyForChildren(t *testing.T) {
	b := newBox(t, nil) // makes a child as libcontainer does
	p := b.run("echo")
	procs, err := b.group(nil).Procs()
	if err != nil || !slices.Equal(procs, []int{p.Process.Pid}) {
		t.Errorf("processes %v, %v, want %d", procs, err, p.Process.Pid)
	}
	if b.limits != b.host.Limits && b.host.Mode != V2 {
		t.Errorf("limits for children %+v, of the host %+v", b.limits, b.host.Limits)
	}
	if tree, ok := b.host.v1("cpuset"); ok {
		if got, want := readString(t, tree.path(b.parent)+"/cpuset.cpus"), readString(t, tree.dir+"/cpuset.cpus"); got != want {
			t.Errorf("cpuset.cpus %q, above %q", got, want)
		}
	}
	if tree, ok := b.host.v1("memory"); ok {
		if got := readString(t, tree.path(b.parent)+"/memory.use_hierarchy"); got != "1" {
			t.Errorf("memory.use_hierarchy %s", got)
		}
	}
}

func TestEnsureParentIsIdempotentAndConcurrent(t *testing.T) {
	h := realHost(t)
	parent := testPrefix + "many"
	t.Cleanup(func() { scrub(t, h, parent) })
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := h.EnsureParent(parent+"/nested/deep", 0); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestParentLimitsAreWritten(t *testing.T) {
	b := newBox(t, &parentLimits{pids: 77})
	enforced(t, "pids", b.limits.Pids)
	tree, _ := b.host.controllerTree("pids")
	for _, step := range []struct {
		pids int64
		want string
	}{{77, "77"}, {0, "77"}, {78, "78"}} { // 0 leaves the limit as it is
		if _, err := b.host.EnsureParent(b.parent, step.pids); err != nil {
			t.Error(err)
		}
		if got := readString(t, tree.path(b.parent)+"/pids.max"); got != step.want {
			t.Errorf("after %d pids.max is %q, want %q", step.pids, got, step.want)
		}
	}
}

func TestRefusedLimitIsAnErrorAndLeavesNothing(t *testing.T) {
	h := realHost(t)
	enforced(t, "pids", h.Limits.Pids)
	parent := testPrefix + "refused"
	t.Cleanup(func() { scrub(t, h, parent) })
	_, err := h.EnsureParent(parent, 1<<40) // more than the kernel has numbers for
	if err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v", err)
	}
	for _, tree := range h.trees {
		if exists(tree.path(parent)) {
			t.Errorf("%s is left", tree.path(parent))
		}
	}
}

func TestUnenforcedLimitIsLeftOutAndSaid(t *testing.T) {
	full := realHost(t)
	if full.Mode == V2 {
		t.Skip("needs controllers on v1: on v2 none can be left out by not mounting it")
	}
	h := *full
	h.trees = slices.DeleteFunc(slices.Clone(full.trees), func(t tree) bool { return slices.Contains(t.controllers, "pids") })
	parent := testPrefix + "without"
	t.Cleanup(func() { scrub(t, full, parent) })
	limits, err := h.EnsureParent(parent, 7)
	if err != nil {
		t.Fatal(err)
	}
	if limits.Pids.Enforced || limits.Pids.Reason == "" || !limits.Memory.Enforced {
		t.Errorf("%+v", limits)
	}
}

func TestRemoveParentSparesChildren(t *testing.T) {
	b := newBox(t, nil)
	if err := b.host.removeParent(b.parent); err != nil {
		t.Error(err)
	}
	for _, tree := range b.host.trees {
		if !exists(tree.path(b.path)) {
			t.Errorf("%s is gone", tree.path(b.path))
		}
		os.Remove(tree.path(b.path))
	}
	for range 2 { // the second time there is none
		if err := b.host.removeParent(b.parent); err != nil {
			t.Error(err)
		}
	}
	for _, tree := range b.host.trees {
		if exists(tree.path(b.parent)) {
			t.Errorf("%s is still there", tree.path(b.parent))
		}
	}
}

func TestChildrenAreListedFromAllHierarchies(t *testing.T) {
	b := newBox(t, nil)
	want := []string{"box"}
	for i, tree := range b.host.trees {
		name := "only-in-" + string(rune('a'+i))
		b.mkdirIn(tree, b.parent+"/"+name)
		want = append(want, name)
	}
	got, err := b.host.Children(b.parent)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	if got, err := b.host.Children(b.parent + "/no-such"); err != nil || len(got) != 0 {
		t.Errorf("children of no group: %v, %v", got, err)
	}
}

func TestRefusedControllerIsReportedNotAnError(t *testing.T) {
	// As a v2 host without the rights over its root, or with processes there:
	// the controllers are offered, the control file cannot be written.
	root := t.TempDir()
	h := &Host{Mode: V2, root: root, trees: []tree{{dir: root, v2: true, controllers: []string{"memory", "pids"}}}}
	writeString(t, root+"/cgroup.procs", "")
	if err := os.Mkdir(filepath.Join(root, "cgroup.subtree_control"), 0o755); err != nil {
		t.Fatal(err)
	}
	limits, err := h.EnsureParent("/parent", 7)
	if err != nil {
		t.Fatal(err)
	}
	if limits.Pids.Enforced || !strings.Contains(limits.Pids.Reason, "enable the pids controller") {
		t.Errorf("pids: %+v", limits.Pids)
	}
	if limits.CPU.Enforced {
		t.Errorf("cpu: %+v", limits.CPU)
	}
	if exists(root + "/parent/pids.max") {
		t.Error("pids.max is written")
	}
}

func TestProcessesInTheRootOfANamespaceAreAnError(t *testing.T) {
	b := newBox(t, nil)
	if b.host.Mode != V2 {
		t.Skip("needs the controllers on v2")
	}
	b.run("echo")
	inside, err := probe(b.host.root + b.path) // as in a container with a cgroup namespace
	if err != nil {
		t.Fatal(err)
	}
	_, err = inside.EnsureParent("/parent", 0)
	if err == nil || !strings.Contains(err.Error(), "move them into a child group") {
		t.Errorf("got %v", err)
	}
	if got := readString(t, b.host.root+b.path+"/cgroup.subtree_control"); got != "" {
		t.Errorf("enabled: %q", got)
	}
}

func TestEnsureParentBelowAFileIsAnError(t *testing.T) {
	root := t.TempDir()
	writeString(t, root+"/file", "")
	h := &Host{Mode: V2, root: root, trees: []tree{{dir: root, v2: true}}}
	if _, err := h.EnsureParent("/file/parent", 0); err == nil || errors.Is(err, ErrNotWritable) {
		t.Errorf("got %v", err)
	}
}
