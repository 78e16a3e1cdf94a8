package launcher

import (
	"context"
	"os"

	"github.com/sandbox-runtime/sandbox-runtime/internal/jobs"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
)

// Start has a command started, and returns: whether it was executed says
// [Process.Started], or at the latest [Process.Wait]. Of a detached one, and of
// one with a terminal, it says that itself. Any number of commands may run at once, each in a cgroup of its
// own.
//
// The files become its first three descriptors; nil is /dev/null. They are
// pipes without a name, as os.Pipe makes them, and get the command's user as
// their owner, so that it can open /dev/stdout again. They stay the caller's to
// close. A command with a terminal, or a detached one, gets none.
//
// Errors: *[launch.ConfigError], [launch.ErrNotFound], [launch.ErrNotRunning],
// [launch.ErrPaused], [launch.ErrUnavailable], and those of Started where
// it waits for that.
func (s *Sandbox) Start(ctx context.Context, c launch.Command, files [3]*os.File) (*jobs.Process, error) {
	return s.session.Start(ctx, c, files)
}

// Attach takes up a detached command, which may have ended, by the id of its
// exec. Any number may be attached to one, in several processes; once one of
// them was told how it ended there is nothing to attach to any more.
//
// Errors: [launch.ErrNotFound], [launch.ErrNotRunning], [launch.ErrPaused].
func (s *Sandbox) Attach(ctx context.Context, exec string) (*jobs.Process, error) {
	return s.session.Attach(ctx, exec)
}

// Execs describes what runs in the sandbox, whichever process asked for it, and
// the detached commands that have ended and were not asked for yet.
func (s *Sandbox) Execs(ctx context.Context) ([]launch.Exec, error) { return s.session.Execs(ctx) }
