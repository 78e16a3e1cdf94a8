package launcher

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/jobs"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// lines of shell for the tests of the grace. All write /workspace/begun first.
const (
	// obeys ends by itself after SIGTERM, with exit code 0.
	obeys = `trap "touch cleaned; exit 0" TERM; touch begun; while :; do sleep 0.05; done`
	// leaves ends at once by SIGTERM. Its child cleans up.
	leaves = `(trap "sleep 0.2; touch cleaned; exit 0" TERM; touch begun; while :; do sleep 0.05; done) & wait`
	// ignores does not end by SIGTERM.
	ignores = `trap "touch asked" TERM; touch begun; while :; do sleep 0.05; done`
)

// ends are the ways in which the runtime ends a command.
var ends = map[string]func(t *testing.T, sb *Sandbox, p *jobs.Process, cancel context.CancelFunc){
	"timeout":   func(*testing.T, *Sandbox, *jobs.Process, context.CancelFunc) {},
	"cancelled": func(_ *testing.T, _ *Sandbox, _ *jobs.Process, cancel context.CancelFunc) { cancel() },
	"given up": func(t *testing.T, _ *Sandbox, p *jobs.Process, _ context.CancelFunc) {
		if err := p.Terminate(); err != nil {
			t.Error(err)
		}
	},
	"closed": func(t *testing.T, _ *Sandbox, p *jobs.Process, _ context.CancelFunc) {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	},
	"removed": func(t *testing.T, sb *Sandbox, _ *jobs.Process, _ context.CancelFunc) {
		if err := sb.Close(); err != nil {
			t.Error(err)
		}
	},
}

// endCommandIn runs a line in a sandbox with a workspace of the host until it has begun, and ends it.
func endCommandIn(t *testing.T, how, line string, grace spec.Grace) (workspace string, r spec.Result) {
	t.Helper()
	workspace = t.TempDir()
	if err := os.Chmod(workspace, 0o777); err != nil {
		t.Fatal(err)
	}
	sb := createUp(t, newTestLauncher(t), "", spec.Config{Workspace: workspace, Grace: grace})
	c := spec.Command{Args: []string{"/bin/sh", "-c", line}}
	if how == "timeout" {
		c.Timeout = spec.Duration(time.Second)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p, err := sb.Start(ctx, c, [3]*os.File{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	exists := func(name string) bool { _, err := os.Lstat(filepath.Join(workspace, name)); return err == nil }
	eventually(t, "the command has begun", func() bool { return exists("begun") })
	done := make(chan struct{})
	if how != "closed" {
		go func() {
			defer close(done)
			r, err = p.Wait(ctx)
		}()
	} else {
		close(done)
	}
	ends[how](t, sb, p, cancel)
	<-done
	if err != nil && how != "removed" {
		t.Errorf("%s: %v", how, err)
	}
	return workspace, r
}

func hasFile(t *testing.T, workspace, name string) bool {
	t.Helper()
	_, err := os.Lstat(filepath.Join(workspace, name))
	return err == nil
}

// git removes index.lock, and a database writes its files, when SIGTERM comes.
func TestACommandAndItsChildrenEndByThemselvesAfterSIGTERM(t *testing.T) {
	testhost.Concurrent(t)
	for how := range ends {
		for name, line := range map[string]string{"command": obeys, "child": leaves} {
			t.Run(how+"/"+name, func(t *testing.T) {
				workspace, r := endCommandIn(t, how, line, spec.Grace(30*time.Second))
				if !hasFile(t, workspace, "cleaned") {
					t.Errorf("SIGTERM has not come, or not in time: %+v", r)
				}
				checkEnd(t, how, r, 15, "ended")
			})
		}
	}
}

// checkEnd checks the Result of a command that the runtime has ended.
func checkEnd(t *testing.T, how string, r spec.Result, signal int, reason string) {
	t.Helper()
	status, code := spec.StatusSignaled, spec.ExitSignalBase+signal
	switch how {
	case "closed": // has no Result
		return
	case "removed": // the launcher may learn of the end late
		return
	case "timeout":
		status, code = spec.StatusTimedOut, spec.ExitTimedOut
	}
	if r.Status != status || r.ExitCode != code || !strings.Contains(r.Reason, reason) || !strings.Contains(r.Reason, "SIGTERM") {
		t.Errorf("got %+v", r)
	}
}

func TestACommandThatIgnoresSIGTERMIsKilledAfterTheGrace(t *testing.T) {
	testhost.Concurrent(t)
	for how := range ends {
		t.Run(how, func(t *testing.T) {
			workspace, r := endCommandIn(t, how, ignores, spec.Grace(500*time.Millisecond))
			if !hasFile(t, workspace, "asked") {
				t.Errorf("SIGTERM has not come: %+v", r)
			}
			checkEnd(t, how, r, 9, "did not end within 500ms after SIGTERM")
		})
	}
}

func TestWithoutAGraceNoSIGTERMComes(t *testing.T) {
	testhost.Concurrent(t)
	for how := range ends {
		t.Run(how, func(t *testing.T) {
			workspace, r := endCommandIn(t, how, ignores, spec.NoGrace)
			if hasFile(t, workspace, "asked") || strings.Contains(r.Reason, "SIGTERM") {
				t.Errorf("SIGTERM has come: %+v", r)
			}
		})
	}
}

// A stopped process cannot handle a signal.
func TestAStoppedCommandGetsSIGTERM(t *testing.T) {
	testhost.Concurrent(t)
	if workspace, r := endCommandIn(t, "timeout", `trap "touch cleaned; exit 0" TERM; touch begun; kill -STOP $$; sleep 100`, spec.Grace(30*time.Second)); !hasFile(t, workspace, "cleaned") {
		t.Errorf("got %+v", r)
	}
}

// A transaction whose caller has given up does not join, even with exit code 0.
func TestATransactionThatEndsInTheGraceVanishes(t *testing.T) {
	sb := createUp(t, newTestLauncher(t), "", spec.Config{})
	c := spec.Command{Args: []string{"/bin/sh", "-c", `trap "exit 0" TERM; touch /workspace/new; while :; do sleep 0.05; done`},
		Transaction: true, Timeout: spec.Duration(500 * time.Millisecond)}
	p, err := sb.Start(t.Context(), c, [3]*os.File{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if r, err := p.Wait(t.Context()); err != nil || r.Status != spec.StatusTimedOut || r.ExitCode != spec.ExitTimedOut {
		t.Errorf("%+v, %v", r, err)
	}
	look, err := sb.Start(t.Context(), spec.Command{Args: []string{"test", "!", "-e", "/workspace/new"}}, [3]*os.File{})
	if err != nil {
		t.Fatal(err)
	}
	defer look.Close()
	if r, err := look.Wait(t.Context()); err != nil || r.ExitCode != 0 {
		t.Errorf("the writes are there: %+v, %v", r, err)
	}
}

func TestADetachedCommandEndsByItselfAfterItsTimeout(t *testing.T) {
	for name, line := range map[string]string{"command": obeys, "child": leaves} {
		t.Run(name, func(t *testing.T) {
			workspace := t.TempDir()
			if err := os.Chmod(workspace, 0o777); err != nil {
				t.Fatal(err)
			}
			sb := createUp(t, newTestLauncher(t), "", spec.Config{Workspace: workspace})
			p := detachedStart(t, sb, spec.Command{Args: []string{"/bin/sh", "-c", line}, Timeout: spec.Duration(time.Second), Grace: spec.Grace(30 * time.Second)})
			r, err := p.Wait(t.Context())
			if err != nil || !hasFile(t, workspace, "cleaned") {
				t.Errorf("%+v, %v", r, err)
			}
			checkEnd(t, "timeout", r, 15, "ended")
		})
	}
}

// The caller of a paused sandbox has stopped its code. The code does not go on for its end.
func TestAPausedCommandGetsNoGrace(t *testing.T) {
	workspace := t.TempDir()
	if err := os.Chmod(workspace, 0o777); err != nil {
		t.Fatal(err)
	}
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{Workspace: workspace, Grace: spec.Grace(30 * time.Second)})
	p, err := sb.Start(t.Context(), spec.Command{Args: []string{"/bin/sh", "-c", ignores}}, [3]*os.File{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	eventually(t, "the command has begun", func() bool { return hasFile(t, workspace, "begun") })
	if err := sb.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := sb.Close(); err != nil {
		t.Error(err)
	}
	if hasFile(t, workspace, "asked") {
		t.Error("the command has gone on")
	}
}

// A signal of the caller reaches the process group. What the command leaves has the rest of the grace.
func TestProcessesThatACommandLeavesAfterASignalHaveTheGrace(t *testing.T) {
	workspace := t.TempDir()
	if err := os.Chmod(workspace, 0o777); err != nil {
		t.Fatal(err)
	}
	sb := createUp(t, newTestLauncher(t), "", spec.Config{Workspace: workspace, Grace: spec.Grace(30 * time.Second)})
	p, err := sb.Start(t.Context(), spec.Command{Args: []string{"/bin/sh", "-c", leaves}}, [3]*os.File{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	eventually(t, "the command has begun", func() bool { return hasFile(t, workspace, "begun") })
	if err := p.Signal(unix.SIGTERM, false); err != nil {
		t.Fatal(err)
	}
	if r, err := p.Wait(t.Context()); err != nil || r.Signal != "SIGTERM" || !hasFile(t, workspace, "cleaned") {
		t.Errorf("%+v, %v", r, err)
	}
}
