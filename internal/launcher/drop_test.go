package launcher

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/jobs"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// duringDrop calls f while a Drop of the session removes leaves, and waits for the end of the Drop.
func duringDrop(t *testing.T, sb *Sandbox, f func()) {
	t.Helper()
	eventually(t, "the first leaf is made", func() bool { return !isBusy(sb.session) })
	addLeaf(t, sb, "exec-held")
	pattern := filepath.Join("/sys/fs/cgroup", "*", sb.session.Group.Path(), "exec-held")
	places, err := filepath.Glob(pattern)
	if err != nil || len(places) == 0 {
		places = []string{filepath.Join("/sys/fs/cgroup", sb.session.Group.Path(), "exec-held")}
	}
	below := filepath.Join(places[0], "below") // rmdir(2) of the leaf is EBUSY, and Drop tries for two seconds
	if err := os.Mkdir(below, 0o700); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		sb.session.Drop()
	}()
	eventually(t, "the Drop removes leaves", func() bool { return isBusy(sb.session) })
	f()
	if !isBusy(sb.session) {
		t.Error("the Drop has ended too early for this test")
	}
	if err := os.Remove(below); err != nil {
		t.Error(err)
	}
	<-ended
}

func isBusy(v *jobs.Session) bool {
	v.Mu.Lock()
	defer v.Mu.Unlock()
	return v.Busy > 0
}

// addLeaf gives the session an empty leaf.
func addLeaf(t *testing.T, sb *Sandbox, name string) {
	t.Helper()
	leaf, err := sb.session.Group.CreateLeaf(name, cgroups.LeafOptions{})
	if err != nil {
		t.Fatal(err)
	}
	sb.session.Leaves.Spares = append(sb.session.Leaves.Spares, jobs.ExecLeaf{Leaf: leaf})
}

// A command that begins and ends during a Drop leaves nothing longer than any other command.
func TestCommandDuringADropLeavesNothing(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	duringDrop(t, sb, func() {
		if r, _ := sh(t, sb, "true"); !r.OK() {
			t.Errorf("%+v", r)
		}
	})
	if names := leafNames(t, l, sb.ID()); len(names) == 0 {
		t.Error("the command had no leaf")
	}
	eventually(t, "the leaf of the command is removed", func() bool { return len(leafNames(t, l, sb.ID())) == 0 })
}

// The sandbox goes during a Drop, while a call makes a leaf. The end of the Drop removes the leaf.
func TestSandboxThatGoesDuringADropLeavesNothing(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	duringDrop(t, sb, func() {
		sb.session.Enter()
		addLeaf(t, sb, "exec-late")
		l.sessions.Forget(sb.ID())
		sb.session.Leave()
	})
	if names := leafNames(t, l, sb.ID()); len(names) > 0 {
		t.Errorf("leaves %q after the Drop", names)
	}
}
