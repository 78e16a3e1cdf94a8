package doctor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A Maker makes sandboxes.
type Maker interface {
	Create(context.Context, spec.Config, ...sandbox.CreateOption) (*sandbox.Sandbox, error)
	Close() error
}

// TryLauncher gives the report the verdict for a user whose sandboxes a launcher makes: whether the
// launcher makes one, and whether that runs a program fully isolated. The features that this user
// lacks do not count, since the launcher has rights of its own.
func (r *Report) TryLauncher(ctx context.Context, socket string, open func(context.Context) (Maker, error)) {
	r.Launcher, r.Proofs = socket, []proofReport{} // in JSON no null
	r.Unproven = "the launcher " + socket + " makes the sandboxes of this user, and only root can examine its host: run doctor as root"
	if err := tryLauncher(ctx, open); err != nil {
		r.Ready, r.Verdict = false, "not ready: "+err.Error()
		return
	}
	r.Ready, r.Verdict = true, "ready: do runs programs here fully isolated, in sandboxes of the launcher "+socket
}

// launcherTime is how long a launcher may take to make and to remove a sandbox.
const launcherTime = 30 * time.Second

func tryLauncher(ctx context.Context, open func(context.Context) (Maker, error)) (err error) {
	ctx, cancel := context.WithTimeout(ctx, launcherTime)
	defer cancel()
	m, err := open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	box, err := m.Create(ctx, spec.Config{}, sandbox.Tied())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, box.Close()) }()
	result, err := box.Run(ctx, "true")
	switch {
	case err != nil:
		return err
	case result.Status != spec.StatusExited || result.ExitCode != 0:
		return fmt.Errorf("a sandbox of the launcher could not run a program: %s", result.Reason)
	case result.Isolation != spec.IsolationFull:
		return fmt.Errorf("a sandbox of the launcher runs programs, but with the isolation %q", result.Isolation)
	}
	return nil
}
