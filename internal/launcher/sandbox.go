package launcher

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"sync"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/jobs"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A Sandbox is a handle of a sandbox. The sandbox was up when the handle was opened, except for a
// handle of OpenStopped. A Sandbox is safe for concurrent use. One sandbox can have any number of
// handles, in any number of processes. Release releases the handle. Close removes the sandbox.
type Sandbox struct {
	launcher *Launcher
	session  *jobs.Session
	reused   bool
	released sync.Once
}

// Open returns a handle of a sandbox that is up. Any process can have made the sandbox.
//
// Open kills the commands that ended launchers have left running in the sandbox, unless the
// commands are detached.
//
// Errors: [fault.ErrNotFound], [fault.ErrNotRunning].
func (l *Launcher) Open(ctx context.Context, id string) (*Sandbox, error) {
	s, err := l.open(id)
	if err != nil {
		return nil, err
	}
	if !s.session.Up() {
		s.Release()
		return nil, &fault.SandboxError{ID: id, Err: fault.ErrNotRunning}
	}
	if statedir.RemovalBegun(s.session.Path()) { // by a process that may have been killed since
		s.Release()
		return nil, &fault.SandboxError{ID: id, Err: errLeaving}
	}
	if err := s.takeOver(ctx); err != nil {
		s.Release()
		return nil, err
	}
	return s, nil
}

// open returns a handle of the sandbox that the record describes, up or not.
//
// Errors: [fault.ErrNotFound].
func (l *Launcher) open(id string) (*Sandbox, error) {
	if !record.IsName(id) {
		return nil, &fault.SandboxError{ID: id, Err: fault.ErrNotFound}
	}
	v, err := l.sessions.Open(id)
	if err != nil {
		return nil, record.NotFound(id, err)
	}
	return &Sandbox{launcher: l, session: v}, nil
}

// ID is the sandbox's name.
func (s *Sandbox) ID() string { return s.session.ID }

// Owner is the user that asked for the sandbox.
func (s *Sandbox) Owner() uint32 { return s.session.Current().UID }

// Info describes the sandbox as it is now.
func (s *Sandbox) Info() (i spec.Info, err error) {
	v := s.session
	now, err := record.VersionOf(v.Path())
	if err == nil && v.IsAt(now) { // a new sandbox: its files need not be read again
		r := v.Current()
		i = r.Info(v.ID, v.Paused)
		noteDamage(s.launcher.Roots, r, &i)
	} else {
		i, err = s.launcher.Info(context.Background(), v.ID)
	}
	if i.Reused = s.reused; i.Reused && err == nil {
		i.Notes = append(slices.Clone(i.Notes), s.replacedNotes()...)
	}
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
	s.session.Unwatch() // else the watch would keep the sandbox's files
	_, err := s.launcher.removePermitted(context.Background(), s.ID(), Condition{init: s.session.Init()}, ofOwner)
	return err
}

// Info describes a sandbox, also one that was removed or made only in part.
//
// Errors: [fault.ErrNotFound].
func (l *Launcher) Info(_ context.Context, id string) (spec.Info, error) {
	if !record.IsName(id) {
		return spec.Info{}, &fault.SandboxError{ID: id, Err: fault.ErrNotFound}
	}
	i, err := l.info(id)
	return i, record.NotFound(id, err)
}

// info describes a sandbox. The error is [fs.ErrNotExist] if there is no such sandbox, if its
// creation is under way, or if it is a blank.
func (l *Launcher) info(id string) (spec.Info, error) {
	if err := l.CheckRoot(); err != nil {
		return spec.Info{}, err
	}
	r, err := record.Read(l.Dir(id))
	pending := false
	if errors.Is(err, fs.ErrNotExist) {
		pending = record.IsPending(l.Dir(id))
		r, err = record.Read(l.Dir(id)) // the sandbox can have come up before that
	}
	if err == nil {
		i := r.Info(id, func() bool { return l.paused(id) })
		if statedir.RemovalBegun(l.Dir(id)) {
			i.State = spec.StateStopped
			i.Notes = append(slices.Clone(i.Notes), "the removal of the sandbox has begun; to finish it, run down again")
		}
		noteDamage(l.Roots, r, &i)
		return i, nil
	}
	st, statErr := os.Stat(l.Dir(id))
	switch {
	case statErr != nil:
		return spec.Info{}, statErr
	case errors.Is(err, fs.ErrNotExist) && (pending || record.IsBlank(l.Dir(id))): // prune removes a blank of an ended launcher
		return spec.Info{}, err
	}
	// The sandbox is half made, or its record is damaged. Both can be removed.
	return spec.Info{ID: id, State: spec.StateStopped, Created: st.ModTime()}, nil
}

// paused says whether a user has paused a sandbox.
func (l *Launcher) paused(id string) bool {
	group, err := l.parts.Group(id)
	if err != nil {
		return false
	}
	if frozen, err := group.Frozen(); err != nil || !frozen {
		return false
	}
	r, err := record.Read(l.Dir(id))
	return err != nil || !r.StandsStill()
}

// List describes the sandboxes with a directory in the state root, sorted by name. Some may have
// stopped, or be there only in part. If may is not nil, List keeps only those for whose owner may
// returns true.
func (l *Launcher) List(_ context.Context, may func(owner uint32) bool) ([]spec.Info, error) {
	ids, err := l.parts.Directories()
	if err != nil {
		return nil, err
	}
	all := []spec.Info{}
	var errs []error
	for _, id := range ids {
		i, err := l.info(id)
		if err == nil && (may == nil || may(i.Owner)) {
			all = append(all, i)
		}
		errs = append(errs, erase.IgnoreMissing(err))
	}
	return all, errors.Join(errs...)
}

// Settings returns the limits of the sandbox as the kernel has them.
func (s *Sandbox) Settings() (cgroups.Settings, error) { return s.session.Group.Settings() }

// Start asks the agent to start a command: see [jobs.Session.Start]. The command has the network of
// the record: Start first finishes the change of a killed process.
func (s *Sandbox) Start(ctx context.Context, c spec.Command, files [3]*os.File) (*jobs.Process, error) {
	if err := s.renew(ctx); err != nil {
		return nil, err
	}
	return s.session.Start(ctx, c, files)
}

// StartFiles starts the program that serves the sandbox's files, as a command of the sandbox's
// user without a timeout. The rules for files and the errors are the same as for Start.
func (s *Sandbox) StartFiles(ctx context.Context, files [3]*os.File) (*jobs.Process, error) {
	if err := s.renew(ctx); err != nil {
		return nil, err
	}
	return s.session.StartFiles(ctx, files)
}

// Attach returns a handle of a detached command by the id of its exec: see
// [jobs.Session.Attach].
func (s *Sandbox) Attach(ctx context.Context, exec string) (*jobs.Process, error) {
	if err := s.renew(ctx); err != nil {
		return nil, err
	}
	return s.session.Attach(ctx, exec)
}

// Execs describes the commands of the sandbox: see [jobs.Session.Execs].
func (s *Sandbox) Execs(ctx context.Context) ([]spec.ExecInfo, error) { return s.session.Execs(ctx) }

// Discard throws away the writes to the sandbox's overlays. The overlays then show the host's
// directories again, or, in a fork, the files of its snapshot.
//
// Errors: [fault.ErrBusy] if a process in the sandbox has open files or its working directory in
// an overlay, and the errors of Pause.
func (s *Sandbox) Discard(ctx context.Context) error {
	return s.withLock(ctx, func() error { return s.session.Overlay.Discard(ctx) })
}

// Undo takes back the last n transactions that joined, the newest first. If others have changed
// the paths of a transaction since then, this is a conflict: this transaction and older ones stay.
//
// Errors: *[fault.ConfigError] if there are fewer transactions, and the errors of Pause.
func (s *Sandbox) Undo(ctx context.Context, n int) error {
	return s.withLock(ctx, func() error { return s.session.Overlay.Undo(ctx, n) })
}

// Retired is how many stores of removed sandboxes a user still holds.
func (l *Launcher) Retired(uid uint32) int { return l.handed.Count(uid) }
