package launcher

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// hostProcess is a process that no sandbox has.
func hostProcess(t *testing.T) process.ID {
	t.Helper()
	i, err := process.Of(testhost.Sleeping(t).Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// forge writes the record of a sandbox "box" whose PID 1 is a process of the host.
func forge(t *testing.T, l *Launcher, init process.ID) {
	t.Helper()
	dir := l.Dir("box")
	r := record.Record{Version: record.FormatVersion, Init: init, Config: spec.Config{User: &spec.User{}}}
	if err := errors.Join(os.MkdirAll(dir, 0o700), r.Write(dir)); err != nil {
		t.Fatal(err)
	}
}

func TestStateRootOfOthersIsRefused(t *testing.T) {
	const other = 4242
	for name, give := range map[string]func(l *Launcher) error{
		"root of another":          func(l *Launcher) error { return os.Chown(l.State, other, other) },
		"root that all may write":  func(l *Launcher) error { return os.Chmod(l.State, 0o777) },
		"sandboxes of another":     func(l *Launcher) error { return os.Chown(l.Sandboxes(), other, other) },
		"sandbox of another":       func(l *Launcher) error { return os.Chown(l.Dir("box"), other, other) },
		"sandbox that a group may": func(l *Launcher) error { return os.Chmod(l.Dir("box"), 0o770) },
	} {
		t.Run(name, func(t *testing.T) {
			l := newTestLauncher(t)
			victim := hostProcess(t)
			forge(t, l, victim)
			if err := give(l); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(l.State) })
			var refused *statedir.UntrustedError
			if err := l.Remove(t.Context(), "box"); !errors.As(err, &refused) {
				t.Errorf("remove: %v", err)
			}
			if _, err := l.Create(t.Context(), protocol.Create{Name: "box", Reuse: true}, Sources{}); err == nil {
				t.Error("it was reused or replaced")
			}
			if _, err := l.Prune(t.Context()); name != "sandbox of another" && name != "sandbox that a group may" && !errors.As(err, &refused) {
				t.Errorf("prune: %v", err)
			}
			if !victim.Lives() {
				t.Error("a process of the host was killed")
			}
		})
	}
}

func TestRecordOfOthersIsNotBelieved(t *testing.T) {
	l := newTestLauncher(t)
	victim := hostProcess(t)
	forge(t, l, victim)
	if err := os.Chown(filepath.Join(l.Dir("box"), record.FileName), 4242, 4242); err != nil {
		t.Fatal(err)
	}
	var refused *statedir.UntrustedError
	if _, err := l.Open(t.Context(), "box"); !errors.As(err, &refused) {
		t.Errorf("open: %v", err)
	}
	if err := l.Remove(t.Context(), "box"); err != nil {
		t.Error(err)
	}
	if !victim.Lives() {
		t.Error("a process of the host was killed")
	}
	checkNothingLeft(t, l)
}

// A sandbox that was left half made has a forged list of cgroups: those of a neighbour.
func TestPruneLeavesForeignCgroupsAlone(t *testing.T) {
	neighbour := createUp(t, newTestLauncher(t), "", spec.Config{})
	theirs, err := os.ReadFile(filepath.Join(neighbour.launcher.State, neighbour.ID(), "cgroups.json"))
	if err != nil {
		t.Fatal(err)
	}
	l := newTestLauncher(t)
	if err := os.MkdirAll(l.Dir("box"), 0o700); err != nil {
		t.Fatal(err)
	}
	forged := filepath.Join(l.State, "box")
	if err := errors.Join(os.Mkdir(forged, 0o711), os.WriteFile(filepath.Join(forged, "cgroups.json"), theirs, 0o600)); err != nil {
		t.Fatal(err)
	}
	if pruned, err := l.Prune(t.Context()); err != nil || len(pruned) != 1 {
		t.Errorf("pruned %v, %v", pruned, err)
	}
	if r, _ := sh(t, neighbour, "true"); !r.OK() {
		t.Errorf("the neighbour: %+v", r)
	}
	if _, err := os.Lstat(forged); err != nil { // it may be a container's
		t.Error(err)
	}
}

func TestForeignContainerStateIsRefused(t *testing.T) {
	neighbour := createUp(t, newTestLauncher(t), "", spec.Config{})
	theirs := filepath.Join(neighbour.launcher.State, neighbour.ID())
	l := newTestLauncher(t)
	sb := createUp(t, l, "box", spec.Config{})
	own := filepath.Join(l.State, "box")
	// edit changes the parsed state of the sandbox.
	edit := func(change func(state, config map[string]any)) func() error {
		return func() error {
			var state map[string]any
			data, err := os.ReadFile(filepath.Join(own, "state.json"))
			if err == nil {
				err = json.Unmarshal(data, &state)
			}
			if err != nil {
				return err
			}
			change(state, state["config"].(map[string]any))
			if data, err = json.Marshal(state); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(own, "state.json"), data, 0o600)
		}
	}
	for name, forge := range map[string]func() error{
		"list of cgroups": func() error {
			data, err := os.ReadFile(filepath.Join(theirs, "cgroups.json"))
			return errors.Join(err, os.WriteFile(filepath.Join(own, "cgroups.json"), data, 0o600))
		},
		"cgroups": edit(func(state, _ map[string]any) {
			paths := state["cgroup_paths"].(map[string]any)
			for hierarchy, dir := range paths {
				paths[hierarchy] = strings.Replace(dir.(string), sb.session.Group.Path(), neighbour.session.Group.Path(), 1)
			}
		}),
		"cgroup": edit(func(_, config map[string]any) {
			config["cgroups"].(map[string]any)["path"] = neighbour.session.Group.Path()
		}),
		"unit": edit(func(_, config map[string]any) { config["cgroups"].(map[string]any)["systemd"] = true }),
		"hook": edit(func(_, config map[string]any) {
			config["Hooks"] = map[string]any{"poststop": []any{map[string]any{"path": "/bin/false"}}}
		}),
	} {
		was := map[string][]byte{}
		for _, file := range []string{"state.json", "cgroups.json"} {
			data, err := os.ReadFile(filepath.Join(own, file))
			if err != nil {
				t.Fatal(err)
			}
			was[file] = data
		}
		if err := forge(); err != nil {
			t.Fatal(err)
		}
		// Without systemd libcontainer refuses a unit by itself.
		if err := sb.Pause(t.Context()); err == nil || name != "unit" && !errors.Is(err, container.ErrForeign) {
			t.Errorf("%s: pause: %v", name, err)
		}
		if neighbour.session.Paused() {
			t.Fatalf("%s: the neighbour is paused", name)
		}
		for file, data := range was {
			if err := os.WriteFile(filepath.Join(own, file), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := errors.Join(sb.Pause(t.Context()), sb.Resume(t.Context())); err != nil {
		t.Error(err)
	}
}
