package sandbox_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox/sandboxtest"
)

// An ender is a provider's Manager, with a command that has written the file begun when it handles SIGTERM.
type ender struct {
	*sandbox.Manager
	// obeys ends by itself after SIGTERM, with exit code 0; ignores does not end.
	obeys, ignores sandbox.Command
}

func eachEnder(t *testing.T, test func(t *testing.T, e ender)) {
	shell := func(line string) sandbox.Command {
		return sandbox.Command{Args: []string{"sh", "-c", line + "; touch begun; while :; do sleep 0.05; done"}}
	}
	shells := ender{obeys: shell(`trap "exit 0" TERM`), ignores: shell(`trap "" TERM`)}
	t.Run("isolated", func(t *testing.T) { shells.Manager = newIsolated(t); test(t, shells) })
	t.Run("local", func(t *testing.T) { shells.Manager = newLocal(t); test(t, shells) })
	t.Run("fake", func(t *testing.T) {
		run := func(ctx context.Context, p *sandboxtest.Program) int {
			root, err := os.OpenRoot(p.Sandbox.Config.Workspace)
			if err != nil {
				return 1
			}
			defer root.Close()
			if f, err := root.Create("begun"); err == nil {
				f.Close()
			}
			<-ctx.Done()
			if p.Command.Args[0] == "ignores" {
				<-t.Context().Done()
			}
			return 0
		}
		test(t, ender{Manager: newFake(t, &sandboxtest.Fake{Run: run}), obeys: command("obeys"), ignores: command("ignores")})
	})
}

// A caller gets the same Result from each provider, and the Result says how the command has ended.
func TestResultsTellWhetherACommandHasEndedInTheGrace(t *testing.T) {
	eachEnder(t, func(t *testing.T, e ender) {
		for name, c := range map[string]struct {
			command sandbox.Command
			grace   time.Duration // of the command; 0: the Config's
			timeout time.Duration // 0: the caller gives up
			status  sandbox.Status
			code    int
			signal  string
			reason  string
		}{
			"timeout, obeys":   {e.obeys, 0, time.Second, sandbox.StatusTimedOut, 124, "", "still running after 1s and ended by itself after SIGTERM, with exit code 0"},
			"timeout, ignores": {e.ignores, 300 * time.Millisecond, time.Second, sandbox.StatusTimedOut, 124, "", "did not end within 300ms after SIGTERM"},
			"timeout, none":    {e.ignores, -1, time.Second, sandbox.StatusTimedOut, 124, "", "after 1s and was killed with all it had started"},
			"gave up, obeys":   {e.obeys, 0, 0, sandbox.StatusSignaled, 143, "SIGTERM", "gave up, and the command ended by itself after SIGTERM"},
			"gave up, ignores": {e.ignores, 300 * time.Millisecond, 0, sandbox.StatusSignaled, 137, "SIGKILL", "did not end within 300ms after SIGTERM"},
			"gave up, none":    {e.ignores, -1, 0, sandbox.StatusSignaled, 137, "SIGKILL", "gave up, and the command was killed with all it had started"},
		} {
			t.Run(name, func(t *testing.T) {
				workspace := t.TempDir()
				if err := os.Chmod(workspace, 0o777); err != nil {
					t.Fatal(err)
				}
				sb := create(t, e.Manager, sandbox.Config{Workspace: workspace, Grace: sandbox.Grace(30 * time.Second)})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				c.command.Timeout, c.command.Grace = c.timeout, c.grace
				p, err := sb.Start(ctx, c.command)
				if err != nil {
					t.Fatal(err)
				}
				if c.timeout == 0 {
					waitForFile(t, filepath.Join(workspace, "begun"))
					cancel()
				}
				r, err := p.Wait()
				if err != nil || r.Status != c.status || r.ExitCode != c.code || r.Signal != c.signal || !strings.Contains(r.Reason, c.reason) {
					t.Errorf("%+v, %v", r, err)
				}
			})
		}
	})
}
