package launcher

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// startJoin brings a sandbox into the state in which a process joins a transaction, and was killed once
// the function is called.
func startJoin(t *testing.T, sb *Sandbox, paused bool) (kill func()) {
	t.Helper()
	state, err := statedir.Hold(sb.launcher.Sandboxes(), sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(state.Release)
	r, err := record.Read(state.Path)
	if err != nil {
		t.Fatal(err)
	}
	r.Join = &record.Join{Paused: paused}
	c, err := sb.session.Container()
	if err := errors.Join(err, r.Write(state.Path)); err != nil {
		t.Fatal(err)
	}
	if !paused {
		if err := c.Pause(); err != nil {
			t.Fatal(err)
		}
	}
	return state.Release
}

// joinOf returns the sandbox's Join on disk.
func joinOf(t *testing.T, sb *Sandbox) *record.Join {
	t.Helper()
	r, err := record.Read(sb.session.Path())
	if err != nil {
		t.Fatal(err)
	}
	return r.Join
}

// The next command of any kind ends a join whose process was killed, and lets the processes go on.
func TestEachCommandEndsAKilledJoin(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, newID(), spec.Config{})
	for name, next := range map[string]func() error{
		"exec": func() error {
			r, err := sb.run(t, "true")
			if err == nil && !r.OK() {
				err = errors.New(r.Reason)
			}
			return err
		},
		"layers": func() error {
			trees, err := layersOf(t, sb, false)
			closeTrees(trees)
			return err
		},
		"open":   func() error { elsewhere(t, sb); return nil },
		"resume": func() error { return sb.Resume(t.Context()) },
		"update": func() error { return sb.Update(t.Context(), spec.Limits{Pids: 90}) },
		"prune": func() error {
			removed, err := l.Prune(t.Context())
			if len(removed) > 0 {
				err = fmt.Errorf("removed %v", removed)
			}
			return err
		},
		"up": func() error { upAgain(t, l, sb.ID()); return nil },
	} {
		kill := startJoin(t, sb, false)
		if i, err := l.Info(t.Context(), sb.ID()); err != nil || i.State != spec.StateRunning {
			t.Errorf("during a join the state is %q, %v", i.State, err)
		}
		kill()
		if err := next(); err != nil {
			t.Errorf("%s after a killed join: %v", name, err)
		}
		if join := joinOf(t, sb); join != nil || sb.session.Frozen() {
			t.Errorf("%s has left %+v, frozen: %t", name, join, sb.session.Frozen())
		}
	}
}

// run runs a command without a shell.
func (s *Sandbox) run(t *testing.T, args ...string) (spec.Result, error) {
	t.Helper()
	p, _ := startPiped(t, s, spec.Command{Args: args})
	return p.Wait(t.Context())
}

func TestAPauseHoldsBeyondAJoin(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, newID(), spec.Config{})
	startJoin(t, sb, false)()
	if err := sb.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if joinOf(t, sb) != nil || !sb.session.Paused() {
		t.Error("after a pause that met a killed join the sandbox is not paused")
	}
	// One that was paused before stays paused.
	startJoin(t, sb, true)()
	if !sb.session.Paused() {
		t.Error("during a join a paused sandbox is not paused")
	}
	if err := sb.withLock(t.Context(), func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	if joinOf(t, sb) != nil || !sb.session.Paused() {
		t.Error("the end of the join has resumed the sandbox")
	}
	if err := sb.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r, err := sb.run(t, "true"); err != nil || !r.OK() {
		t.Error(r, err)
	}
}

// A join of another process neither refuses a command, nor a resume, nor a kill: all of these wait.
func TestCommandsWaitForAJoin(t *testing.T) {
	testhost.Concurrent(t)
	l := newTestLauncher(t)
	sb := createUp(t, l, newID(), spec.Config{})
	sleeper, _ := startPiped(t, sb, spec.Command{Args: []string{"sleep", "1000"}})
	if err := sleeper.Started(t.Context()); err != nil {
		t.Fatal(err)
	}
	late, _ := startPiped(t, sb, spec.Command{Args: []string{"sleep", "1000"}, Timeout: spec.Duration(100 * time.Millisecond)})
	kill := startJoin(t, sb, false)
	ends := map[string]chan error{"resume": make(chan error, 1), "exec": make(chan error, 1), "kill": make(chan error, 1)}
	go func() { ends["resume"] <- sb.Resume(t.Context()) }()
	go func() { ends["kill"] <- sleeper.Kill() }()
	go func() {
		p, err := sb.Start(t.Context(), spec.Command{Args: []string{"true"}}, [3]*os.File{})
		if err == nil {
			_, err = p.Wait(t.Context())
			err = errors.Join(err, p.Close())
		}
		ends["exec"] <- err
	}()
	time.Sleep(300 * time.Millisecond)
	for name, end := range ends {
		select {
		case err := <-end:
			t.Errorf("%s did not wait for the join: %v", name, err)
			end <- err
		default:
		}
	}
	if !sb.session.Frozen() {
		t.Error("a resume has ended the join")
	}
	kill()
	for name, end := range ends {
		if err := <-end; err != nil {
			t.Errorf("%s after the join: %v", name, err)
		}
	}
	if r, err := late.Wait(t.Context()); err != nil || r.Status != spec.StatusTimedOut || strings.Contains(strings.Join(r.Notes, ""), "paused") {
		t.Errorf("a command whose time ended during the join: %+v, %v", r, err)
	}
	if r, err := sleeper.Wait(t.Context()); err != nil || r.Signal != "SIGKILL" {
		t.Errorf("the killed command: %+v, %v", r, err)
	}
}

func TestDownEndsDuringAKilledJoin(t *testing.T) {
	l := newTestLauncher(t)
	for range 2 {
		sb := createUp(t, l, newID(), spec.Config{})
		if _, err := sb.Start(t.Context(), spec.Command{Args: []string{"sleep", "1000"}, Detached: true}, [3]*os.File{}); err != nil {
			t.Fatal(err)
		}
		startJoin(t, sb, false)()
		if err := l.Remove(t.Context(), sb.ID()); err != nil {
			t.Error(err)
		}
	}
}

// A pause during a join waits for the join, which is whole then. The processes stand still meanwhile, also
// those of a sandbox in the pid namespace of the host.
func TestAPauseDuringAJoinFindsAllFiles(t *testing.T) {
	testhost.Concurrent(t)
	if reason := layersOfAnywhere(t); reason != "" {
		t.Skip(reason)
	}
	for _, pids := range []spec.PID{spec.PIDPrivate, spec.PIDHost} {
		t.Run(string(pids), func(t *testing.T) { testPauseDuringAJoin(t, pids) })
	}
}

func testPauseDuringAJoin(t *testing.T, pids spec.PID) {
	l := newTestLauncher(t)
	sb := createUp(t, l, newID(), spec.Config{Cwd: spec.WorkspacePath, PID: pids})
	sh(t, sb, "echo old > f0")
	// The look begins when the first change shows.
	look, read := startPiped(t, sb, spec.Command{Args: []string{"sh", "-c", `x=; until [ "$x" = 0 ]; do read x < f0; done; ls | wc -l`}})
	if err := look.Started(t.Context()); err != nil {
		t.Fatal(err)
	}
	p, _ := startPiped(t, sb, spec.Command{Transaction: true, Args: []string{"sh", "-c", "i=0; while [ $i -lt 2000 ]; do echo $i > f$i; i=$((i+1)); done"}})
	paused := make(chan error, 1)
	go func() {
		for joinOf(t, sb) == nil {
			if t.Context().Err() != nil {
				break
			}
		}
		paused <- sb.Pause(t.Context())
	}()
	r, err := p.Wait(t.Context())
	if err != nil || !r.OK() {
		t.Fatalf("%+v, %v", r, err)
	}
	if err := <-paused; err != nil || !sb.session.Paused() {
		t.Fatalf("paused: %t, %v", sb.session.Paused(), err)
	}
	if err := sb.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r, err := look.Wait(t.Context()); err != nil || !r.OK() {
		t.Fatal(r, err)
	}
	if out := read(); out.stdout != "2000\n" {
		t.Errorf("a look that began after the join saw %s files", out.stdout)
	}
}

// Without a freezer a transaction joins beside the other processes, and the Result says so.
func TestAJoinWithoutAFreezerIsNoted(t *testing.T) {
	if reason := layersOfAnywhere(t); reason != "" {
		t.Skip(reason)
	}
	l := newTestLauncher(t)
	sb := createUp(t, l, newID(), spec.Config{Cwd: spec.WorkspacePath})
	file := filepath.Join(l.State, sb.ID(), "state.json")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var state map[string]any
	if err := json.Unmarshal(data, &state); err != nil {
		t.Fatal(err)
	}
	groups := state["cgroup_paths"].(map[string]any)
	delete(groups, "freezer")
	delete(groups, "")
	if data, err = json.Marshal(state); err == nil {
		err = os.WriteFile(file, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	r, out := transact(t, sb, "echo new > file")
	if !r.OK() || !slices.ContainsFunc(r.Notes, func(note string) bool { return strings.HasPrefix(note, "the host has no freezer: ") }) {
		t.Errorf("%+v %+v", r, out)
	}
	if _, out := sh(t, sb, "cat file"); out.stdout != "new\n" || joinOf(t, sb) != nil {
		t.Errorf("then there is %q, %+v", out.stdout, joinOf(t, sb))
	}
	if err := sb.Undo(t.Context(), 1); err != nil {
		t.Error(err)
	}
}
