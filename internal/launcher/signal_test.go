package launcher

import (
	"context"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/jobs"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Right after the start a command is not in its cgroup yet, and leads no process group.
func TestASignalRightAfterTheStartEndsTheCommand(t *testing.T) {
	sb := createUp(t, newTestLauncher(t), "", spec.Config{})
	for name, end := range map[string]func(*jobs.Process, context.CancelFunc) error{
		"kill":         func(p *jobs.Process, _ context.CancelFunc) error { return p.Kill() },
		"signal":       func(p *jobs.Process, _ context.CancelFunc) error { return p.Signal(unix.SIGTERM, false) },
		"cancelled":    func(_ *jobs.Process, cancel context.CancelFunc) error { cancel(); return nil },
		"all, by kill": func(p *jobs.Process, _ context.CancelFunc) error { return p.Signal(unix.SIGKILL, true) },
	} {
		for range 25 {
			ctx, cancel := context.WithCancel(t.Context())
			p, err := sb.Start(ctx, spec.Command{Args: []string{"sleep", "3"}}, [3]*os.File{})
			if err != nil {
				t.Fatal(err)
			}
			if err := end(p, cancel); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			r, err := p.Wait(ctx)
			if err != nil || r.Signal == "" || r.Duration > 2*time.Second {
				t.Errorf("%s: %+v, %v", name, r, err)
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			cancel()
			if t.Failed() {
				break
			}
		}
	}
}
