package launcher

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"sync"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/jobs"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A Sandbox is a handle of one that is up, or was when it was opened. It is
// safe for concurrent use, and any number of handles, in any number of
// processes, may be of one sandbox. To let go of it is Release; Close removes
// the sandbox.
type Sandbox struct {
	launcher *Launcher
	session  *jobs.Session
	reused   bool
	released sync.Once
}

// Open returns a handle of a sandbox that is up, with any maker.
//
// Commands that ended processes have left running there are killed, unless they are
// detached.
//
// Errors: [launch.ErrNotFound], [launch.ErrNotRunning].
func (l *Launcher) Open(ctx context.Context, id string) (*Sandbox, error) {
	if !record.IsName(id) {
		return nil, &launch.SandboxError{ID: id, Err: launch.ErrNotFound}
	}
	s, err := l.open(id)
	if err != nil {
		return nil, record.NotFound(id, err)
	}
	if !s.session.Up() {
		s.Release()
		return nil, &launch.SandboxError{ID: id, Err: launch.ErrNotRunning}
	}
	if err := s.takeOver(ctx); err != nil {
		s.Release()
		return nil, err
	}
	return s, nil
}

// open returns a handle of the sandbox that the record describes, up or not.
func (l *Launcher) open(id string) (*Sandbox, error) {
	v, err := l.sessions.Open(id)
	if err != nil {
		return nil, err
	}
	return &Sandbox{launcher: l, session: v}, nil
}

// ID is the sandbox's name.
func (s *Sandbox) ID() string { return s.session.ID }

// Owner is the user that asked for the sandbox.
func (s *Sandbox) Owner() uint32 { return s.session.Current().UID }

// Info describes the sandbox as it is now.
func (s *Sandbox) Info() (spec.Info, error) {
	i, err := s.launcher.Info(context.Background(), s.ID())
	i.Reused = s.reused
	return i, err
}

// Release releases the handle. The sandbox stays up, and its commands go on.
func (s *Sandbox) Release() {
	s.released.Do(func() { s.session.Release() })
}

// Close ends all that runs in the sandbox, removes the sandbox and releases the handle. It
// may be called again, also if others have removed the sandbox. A later sandbox of the
// same name stays.
func (s *Sandbox) Close() error {
	defer s.Release()
	s.session.Unwatch() // else it would keep the sandbox's files
	return s.launcher.removeOnly(context.Background(), s.ID(), s.session.Init())
}

// Info describes a sandbox, of which there may be no more than remains.
//
// Errors: [launch.ErrNotFound].
func (l *Launcher) Info(_ context.Context, id string) (spec.Info, error) {
	if !record.IsName(id) {
		return spec.Info{}, &launch.SandboxError{ID: id, Err: launch.ErrNotFound}
	}
	i, err := l.info(id)
	return i, record.NotFound(id, err)
}

// Info describes a sandbox; [fs.ErrNotExist] says that there is none, or that it
// is still being made.
func (l *Launcher) info(id string) (spec.Info, error) {
	if err := l.CheckRoot(); err != nil {
		return spec.Info{}, err
	}
	r, err := record.Read(l.Dir(id))
	if err == nil {
		i := r.Info(id, func() bool { return l.paused(id) })
		noteDamage(l.Roots, r, &i)
		return i, nil
	}
	st, statErr := os.Stat(l.Dir(id))
	switch {
	case statErr != nil:
		return spec.Info{}, statErr
	case errors.Is(err, fs.ErrNotExist) && statedir.OwnerLives(l.Dir(id)):
		return spec.Info{}, err
	}
	// Half made, or its record is damaged: it can be removed.
	return spec.Info{ID: id, State: spec.StateStopped, Created: st.ModTime()}, nil
}

// paused says whether a sandbox stands still.
func (l *Launcher) paused(id string) bool {
	group, err := l.find.group(id)
	if err != nil {
		return false
	}
	frozen, err := group.Frozen()
	return err == nil && frozen
}

// List describes all sandboxes of the state root that are up, or of which
// something is left, by their names.
func (l *Launcher) List(context.Context) ([]spec.Info, error) {
	ids, err := l.find.directories()
	if err != nil {
		return nil, err
	}
	var (
		all  []spec.Info
		errs []error
	)
	for _, id := range ids {
		switch i, err := l.info(id); {
		case err == nil:
			all = append(all, i)
		case !errors.Is(err, fs.ErrNotExist):
			errs = append(errs, err)
		}
	}
	return all, errors.Join(errs...)
}

// Settings are the limits that the kernel holds for the sandbox.
func (s *Sandbox) Settings() (cgroups.Settings, error) { return s.session.Group.Settings() }

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
func (s *Sandbox) Start(ctx context.Context, c spec.Command, files [3]*os.File) (*jobs.Process, error) {
	return s.session.Start(ctx, c, files)
}

// StartFiles starts the program that serves the sandbox's files, as a command of the
// sandbox's user without a timeout. Its files are as those of Start, and so are its errors.
func (s *Sandbox) StartFiles(ctx context.Context, files [3]*os.File) (*jobs.Process, error) {
	return s.session.StartFiles(ctx, files)
}

// Attach takes up a detached command, which may have ended, by the id of its
// exec. Any number may be attached to one, in several processes; once one of
// them was told how it ended there is nothing to attach to any more.
//
// Errors: [launch.ErrNotFound], [launch.ErrNotRunning], [launch.ErrPaused].
func (s *Sandbox) Attach(ctx context.Context, exec string) (*jobs.Process, error) {
	return s.session.Attach(ctx, exec)
}

// Execs describes the running commands of the sandbox, of any process, and the detached
// commands that have ended and whose result nobody has taken yet.
func (s *Sandbox) Execs(ctx context.Context) ([]spec.ExecInfo, error) { return s.session.Execs(ctx) }

// Discard throws away the writes to the sandbox's overlays: they show the host's
// directories again, or the files with which a fork has begun.
//
// Errors: [launch.ErrBusy] if something in the sandbox has files open there or its
// directory, and those of Pause.
func (s *Sandbox) Discard(ctx context.Context) error {
	return s.alone(ctx, func() error { return s.session.Overlay.Discard(ctx) })
}

// Undo takes back the last n transactions that joined, the newest first. If others have
// changed the same paths since, that is a conflict: that transaction and older ones stay.
//
// Errors: *[launch.ConfigError] if there are fewer transactions, and those of Pause.
func (s *Sandbox) Undo(ctx context.Context, n int) error { return s.session.Overlay.Undo(ctx, n) }
