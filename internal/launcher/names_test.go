package launcher

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// groupsOf are the names of the present cgroups that were made for this id.
func groupsOf(t *testing.T, l *Launcher, id string) (names []string) {
	t.Helper()
	host, err := cgroups.Probe()
	if err != nil {
		t.Fatal(err)
	}
	all, err := host.Children(record.CgroupParent)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		if of, ours := l.CgroupID(name); ours && of == id {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// moveSandbox gives a sandbox another id, as a claim does with a blank.
func moveSandbox(t *testing.T, l *Launcher, from, to string) {
	t.Helper()
	for _, dir := range []string{l.State, l.Sandboxes()} {
		if err := os.Rename(filepath.Join(dir, from), filepath.Join(dir, to)); err != nil {
			t.Fatal(err)
		}
	}
}

// A claim that is killed leaves the directory of its blank, without any file. The objects that the
// directory's id names are those of the new sandbox.
func TestADirectoryWithTheFirstIDOfAnotherSandbox(t *testing.T) {
	for name, remove := range map[string]func(*Launcher) error{
		"prune": func(l *Launcher) error { _, err := l.Prune(t.Context()); return err },
		"down":  func(l *Launcher) error { return l.Remove(t.Context(), "first") },
	} {
		l := newTestLauncher(t)
		createUp(t, l, "first", spec.Config{Storage: spec.StorageDisk})
		l.Close()
		moveSandbox(t, l, "first", "second")
		left, err := statedir.Make(l.Sandboxes(), "first")
		if err != nil {
			t.Fatal(err)
		}
		left.Release()
		if err := remove(l); err != nil || statedir.Exists(l.Dir("first")) {
			t.Errorf("%s: %v", name, err)
		}
		if owners, err := l.ids.Owners(); err != nil || len(owners) != 1 {
			t.Errorf("%s: owners of ids: %+v, %v", name, owners, err)
		}
		if images, err := l.Images(); err != nil || len(images) != 1 {
			t.Errorf("%s: images: %q, %v", name, images, err)
		}
		second, err := l.Open(t.Context(), "second")
		if err != nil {
			t.Fatal(err)
		}
		if r, out := sh(t, second, "echo here >file && sync && cat file"); !r.OK() || out.stdout != "here\n" {
			t.Errorf("%s: %+v, %+v", name, r, out)
		}
		if err := second.Close(); err != nil {
			t.Error(err)
		}
		checkNothingLeft(t, l)
	}
}

// Nobody gets the id of a blank that a claim has given another name, even if the blank's range of user ids is
// not found by the quick look. Nobody learns the other name, which can be that of another user.
func TestTheFirstIDOfAnotherSandboxIsTaken(t *testing.T) {
	l := newTestLauncher(t)
	createUp(t, l, "sb-first", spec.Config{Storage: spec.StorageDisk})
	l.Close()
	moveSandbox(t, l, "sb-first", "second")
	create := func() {
		t.Helper()
		sb, err := l.Create(t.Context(), protocol.Create{Name: "sb-first"}, Sources{})
		if !errors.Is(err, fault.ErrExists) || strings.Contains(err.Error(), "second") {
			t.Errorf("made another sandbox with the objects of this one, or told its name: %v", err)
		}
		if err == nil {
			sb.Release()
		}
	}
	create()
	if owners, err := l.ids.Owners(); err != nil || len(owners) != 1 {
		t.Errorf("owners of ids: %+v, %v", owners, err)
	}
	if images, err := l.Images(); err != nil || len(images) != 1 {
		t.Errorf("images: %q, %v", images, err)
	}
	if err := l.ids.ReleaseAll("sb-first"); err != nil {
		t.Fatal(err)
	}
	create()
	if err := l.Remove(t.Context(), "second"); err != nil {
		t.Error(err)
	}
	checkNothingLeft(t, l)
}

// A sandbox gets another id by moving its directories. Its cgroup keeps its name: v2 cannot
// rename groups.
func TestACgroupKeepsItsNameWhenTheIDChanges(t *testing.T) {
	l := newTestLauncher(t)
	first := createUp(t, l, "first", spec.Config{})
	if names := groupsOf(t, l, "first"); len(names) != 1 || names[0] == l.CgroupPrefix()+"first" || "/"+names[0] != strings.TrimPrefix(first.session.Group.Path(), record.CgroupParent) {
		t.Fatalf("%v, want one with a name of its own: %s", names, first.session.Group.Path())
	}
	l.Close()
	moveSandbox(t, l, "first", "second")
	second, err := l.Open(t.Context(), "second")
	if err != nil {
		t.Fatal(err)
	}
	if r, out := sh(t, second, "echo here"); !r.OK() || out.stdout != "here\n" {
		t.Errorf("%+v", r)
	}
	if err := errors.Join(second.Pause(t.Context()), second.Resume(t.Context())); err != nil {
		t.Error(err)
	}
	second.Release()
	if pruned, err := l.Prune(t.Context()); err != nil || len(pruned) > 0 {
		t.Errorf("pruned %v, %v", pruned, err)
	}
	if err := l.Remove(t.Context(), "first"); err != nil {
		t.Error(err)
	}
	if _, err := l.Create(t.Context(), protocol.Create{Name: "first"}, Sources{}); !errors.Is(err, fault.ErrExists) {
		t.Errorf("made another sandbox with the objects of this one: %v", err)
	}
	if r, _ := sh(t, second, "true"); !r.OK() {
		t.Errorf("%+v", r)
	}
	if err := l.Remove(t.Context(), "second"); err != nil {
		t.Error(err)
	}
	if names := groupsOf(t, l, "first"); len(names) > 0 {
		t.Errorf("left: %v", names)
	}
	checkNothingLeft(t, l)
}

// The directory of a sandbox is lost, and its id is used again: the cgroup of the first one
// is removed.
func TestALostSandboxesCgroupIsNotTheNextOnes(t *testing.T) {
	l := newTestLauncher(t)
	createUp(t, l, "box", spec.Config{})
	former := groupsOf(t, l, "box")
	l.Close()
	// Without its range of user ids the first one is found by its container alone.
	if err := errors.Join(os.RemoveAll(l.Dir("box")), l.ids.ReleaseAll("box")); err != nil {
		t.Fatal(err)
	}
	next := createUp(t, l, "box", spec.Config{})
	if names := groupsOf(t, l, "box"); len(names) != 1 || slices.Equal(names, former) {
		t.Errorf("%v, after %v", names, former)
	}
	if r, _ := sh(t, next, "true"); !r.OK() {
		t.Errorf("%+v", r)
	}
}

// No cgroup of others is used or removed for a sandbox, whatever its file of names says. The
// sandbox's own cgroup is found by the id, and removed.
func TestNamesThatAreNotThisLaunchersAreRefused(t *testing.T) {
	l := newTestLauncher(t)
	for _, data := range []string{"", fmt.Sprintf(`{"made":"box","cgroup":%q}`, l.CgroupPrefix()+"other@b")} {
		createUp(t, l, "box", spec.Config{})
		if err := os.WriteFile(filepath.Join(l.Dir("box"), record.NamesFile), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := l.Remove(t.Context(), "box"); err != nil {
			t.Errorf("%s: %v", data, err)
		}
		if left := groupsOf(t, l, "box"); len(left) > 0 {
			t.Errorf("%s: left: %v", data, left)
		}
	}
	checkNothingLeft(t, l)
}
