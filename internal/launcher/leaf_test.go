package launcher

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/jobs"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// leafNumbers are the inodes of the leaves that are there: a renewed one keeps
// its own. Those that are not used again are removed in the background.
func leafNumbers(t *testing.T, sb *Sandbox) (all []uint64) {
	t.Helper()
	names, err := sb.session.Group.Leaves()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		leaf, err := sb.session.Group.OpenLeaf(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		dir, tasks := leaf.Join()
		if dir == nil {
			dir = tasks[0]
		}
		var st unix.Stat_t
		if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
			t.Error(err)
		}
		all = append(all, st.Ino)
		if err := leaf.Close(); err != nil {
			t.Error(err)
		}
	}
	return all
}

// A launcher that serves requests makes the leaf of the first exec before that exec.
func TestTheFirstExecFindsItsLeaf(t *testing.T) {
	l := newTestLauncher(t)
	l.FinishRemovalsAside(func(err error) { t.Error(err) })
	sb := createUp(t, l, "", spec.Config{})
	l.tending.Wait()
	before := leafNumbers(t, sb)
	if len(before) != 1 {
		t.Fatalf("%d leaves before the first exec", len(before))
	}
	if r, _ := sh(t, sb, ":"); !r.OK() {
		t.Fatalf("got %+v", r)
	}
	if after := leafNumbers(t, sb); !slices.Equal(after, before) {
		t.Errorf("leaves %v after the first exec, and %v before", after, before)
	}
}

// The blank that is claimed next has the leaf of its first exec.
func TestAClaimTakesTheLeafOfTheBlank(t *testing.T) {
	l := newPooledLauncher(t, 2)
	limited := claimed1(t, l, inMemory("", spec.Config{Limits: spec.Limits{CPUs: 0.5}}))
	if old := leafNumbers(t, limited); len(old) > 0 {
		t.Errorf("a sandbox with other limits than its blank has the leaves %v of the blank", old)
	}
	awaitBlanks(t, l, 2)
	sb := claimed1(t, l, inMemory("", spec.Config{}))
	before := leafNumbers(t, sb)
	if r, _ := sh(t, sb, ":"); !r.OK() {
		t.Fatalf("got %+v", r)
	}
	if after := leafNumbers(t, sb); len(before) != 1 || !slices.Equal(after, before) {
		t.Errorf("leaves %v after the first exec, and %v before", after, before)
	}
}

// A leaf takes memory: only the blank that is claimed next has one.
func TestTheOtherBlanksHaveNoLeaf(t *testing.T) {
	l := newPooledLauncher(t, 3)
	blanks, err := l.parts.Directories()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, id := range blanks {
		all = append(all, leafNames(t, l, id)...)
	}
	if len(blanks) != 3 || len(all) != 1 {
		t.Errorf("the blanks %q have the leaves %q", blanks, all)
	}
}

// leafNames are the leaves of a sandbox or a blank.
func leafNames(t *testing.T, l *Launcher, id string) []string {
	t.Helper()
	group, err := l.sessions.OpenGroup(id)
	if err != nil {
		t.Fatal(err)
	}
	names, err := group.Leaves()
	if err := errors.Join(err, group.Close()); err != nil {
		t.Fatal(err)
	}
	return names
}

// A health check gives the blank that is claimed next a leaf, and takes the leaves of the others with their
// open files.
func TestAHealthCheckMovesTheLeaf(t *testing.T) {
	l := newTestLauncher(t)
	b, err := (&blanks{launcher: l}).newBlank(t.Context(), defaultKind(t), false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // the garbage collector closes files, too
	names, _, err := l.NamesOf(b.ID)
	if err != nil {
		t.Fatal(err)
	}
	for _, isNext := range []bool{true, false, false, true, true, false} {
		if err := (&blanks{launcher: l}).checkBlank(t.Context(), b, isNext); err != nil {
			t.Fatal(err)
		}
		open := slices.DeleteFunc(openFiles(t), func(f string) bool { return !strings.Contains(f, names.CgroupPath()) })
		if (len(open) > 0) != isNext {
			t.Errorf("open in its cgroup after a check of a blank that is next: %v: %q", isNext, open)
		}
		if leaves := leafNames(t, l, b.ID); len(leaves) > 1 || (len(leaves) == 1) != isNext {
			t.Errorf("leaves %q after a check of a blank that is next: %v", leaves, isNext)
		}
	}
}

// What an exec has used, and what befell it, is nothing to the next.
func TestLeavesThatAreUsedAgainCountAnew(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	host, err := cgroups.Probe()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	again := host.Mode == cgroups.V2 // where none is
	var before []uint64
	for range 12 {
		heavy, _ := sh(t, sb, "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; head -c 32m /dev/zero | tail -c 32m >/dev/null")
		light, _ := sh(t, sb, ":")
		if !heavy.OK() || !light.OK() {
			t.Fatalf("got %+v and %+v", heavy, light)
		}
		if light.CPU > heavy.CPU/2 || light.PeakMemory > 8<<20 || len(light.Violations) > 0 {
			t.Errorf("after %+v came %+v", heavy, light)
		}
		names = append(names, heavy.Exec, light.Exec)
		now := leafNumbers(t, sb)
		again = again || slices.ContainsFunc(now, func(n uint64) bool { return slices.Contains(before, n) })
		before = now
	}
	if !again {
		t.Error("no leaf was used again")
	}
	slices.Sort(names)
	if len(slices.Compact(names)) != 24 {
		t.Errorf("the ids of 24 execs: %q", names)
	}
	killed, _ := sh(t, sb, "kill -9 $$")
	if r, _ := sh(t, sb, "sleep 0.01"); !r.OK() || r.Duration < 10*time.Millisecond {
		t.Errorf("after %+v came %+v", killed, r)
	}
}

// A launcher that is killed while it renames a leaf leaves it with one name in
// some hierarchies and another in the rest: the next one removes both.
func TestAHalfRenamedLeafIsRemoved(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "box", spec.Config{})
	dead := deadProcess(t)
	old, next := jobs.ExecID{Pid: uint32(dead.Pid), Start: dead.Start, N: 1}, jobs.ExecID{Pid: uint32(dead.Pid), Start: dead.Start, N: 2}
	leaf, err := sb.session.Group.CreateLeaf(old.Leaf(), leafOptions(sb))
	if err != nil {
		t.Fatal(err)
	}
	dir, tasks := leaf.Join()
	if dir != nil {
		t.Skip("needs the controllers on v1")
	}
	joinLeaf(t, leaf)
	path := filepath.Dir(tasks[0].Name())
	if err := errors.Join(os.Rename(path, filepath.Join(filepath.Dir(path), next.Leaf())), leaf.Close()); err != nil {
		t.Fatal(err)
	}
	again := elsewhere(t, sb)
	if r, _ := sh(t, again, "true"); !r.OK() {
		t.Errorf("got %+v", r)
	}
	names, err := sb.session.Group.Leaves()
	if err != nil || slices.Contains(names, old.Leaf()) || slices.Contains(names, next.Leaf()) {
		t.Errorf("left: %q, %v", names, err)
	}
}
