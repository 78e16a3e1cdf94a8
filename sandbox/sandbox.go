package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// RunTimeout is how long [Sandbox.Run] lets a shell line run where the Config
// has no timeout.
const RunTimeout = 60 * time.Second

// A Sandbox runs commands, which share its files, processes and limits, until it
// is closed.
type Sandbox struct {
	manager  *Manager
	provider Provider
	instance Instance
	info     Info // as it was made or found
	closed   atomic.Bool
	files    *Files
	// removing is held while it is removed.
	removing sync.Mutex
	removed  bool
}

func newSandbox(m *Manager, p Provider, instance Instance) *Sandbox {
	s := &Sandbox{manager: m, provider: p, instance: instance, info: instance.Info()}
	s.files = &Files{sandbox: s, connecting: make(chan struct{}, 1)}
	return s
}

// ID is unique on the host.
func (s *Sandbox) ID() string { return s.info.ID }

// open says whether there is something to work with.
func (s *Sandbox) open() error {
	if s.instance == nil || s.closed.Load() {
		return &Error{s.info.ID, ErrClosed}
	}
	return nil
}

// capability is what an Instance can do beyond running commands.
func capability[T any](s *Sandbox, what string) (T, error) {
	var none T
	if err := s.open(); err != nil {
		return none, err
	}
	c, ok := s.instance.(T)
	if !ok {
		return none, &Error{s.info.ID, fmt.Errorf("%s: provider %s %w", what, s.provider.Name(), errUnsupported)}
	}
	return c, nil
}

// errUnsupported is about a provider.
var errUnsupported = fmt.Errorf("has no such thing, which %w", ErrUnavailable)

// Info describes the sandbox as it is now.
//
// Errors: ErrNotFound if it was removed, ErrClosed.
func (s *Sandbox) Info(ctx context.Context) (Info, error) {
	if err := s.open(); err != nil {
		return Info{}, err
	}
	describer, ok := s.instance.(Describer)
	if !ok {
		return s.info, nil
	}
	info, err := describer.Describe(ctx)
	return info, about(s.info.ID, err)
}

// Execs describes the commands that run, whoever started them, and detached ones
// that have ended and whose Result nobody took yet.
func (s *Sandbox) Execs(ctx context.Context) ([]ExecInfo, error) {
	a, err := capability[Attacher](s, "execs")
	if err != nil {
		return nil, err
	}
	execs, err := a.Execs(ctx)
	return execs, about(s.info.ID, err)
}

// Attach takes up a detached command by its id, whoever started it: the output
// that was kept so far, and what comes, goes to the writers, as those of a
// Command; where one is nil, into the Result. Wait returns when the command has
// ended, and its Result is then nobody else's; when ctx is done before, Wait
// returns its error and the command goes on.
//
// Errors: ErrNotFound if there is no detached command of this id, or its Result
// was taken; ErrUnavailable if the provider has no detached commands.
func (s *Sandbox) Attach(ctx context.Context, execID string, stdout, stderr io.Writer) (*Process, error) {
	a, err := capability[Attacher](s, "attach to a command")
	if err != nil {
		return nil, err
	}
	p, err := attach(ctx, s, a, execID, stdout, stderr)
	if err != nil {
		return nil, about(s.info.ID, fmt.Errorf("exec %s: %w", execID, err))
	}
	return p, nil
}

// Stats are what the sandbox uses.
func (s *Sandbox) Stats(ctx context.Context) (Stats, error) {
	m, err := capability[Meter](s, "stats")
	if err != nil {
		return Stats{}, err
	}
	stats, err := m.Stats(ctx)
	return stats, about(s.info.ID, err)
}

// Pause halts all processes in the sandbox, until Resume. That it is paused is
// no error.
func (s *Sandbox) Pause(ctx context.Context) error {
	p, err := capability[Pauser](s, "pause")
	if err != nil {
		return err
	}
	return about(s.info.ID, p.Pause(ctx))
}

// Resume has a paused sandbox go on. That it is not paused is no error.
func (s *Sandbox) Resume(ctx context.Context) error {
	p, err := capability[Pauser](s, "resume")
	if err != nil {
		return err
	}
	return about(s.info.ID, p.Resume(ctx))
}

// Update changes the sandbox's limits while it runs. Zero fields stay as they
// are.
//
// Errors: *ConfigError for a limit that is out of bounds.
func (s *Sandbox) Update(ctx context.Context, l Limits) error {
	u, err := capability[Updater](s, "update of limits")
	if err != nil {
		return err
	}
	return about(s.info.ID, u.Update(ctx, l))
}

// SetWorkspace has a directory of this host's be at /workspace from now on, in
// place of the private one or of another, as Config.Workspace does from the start:
// a sandbox can be made before it is known what for.
//
// Errors: *ConfigError for a directory that can't be shown, ErrBusy if something
// in the sandbox uses the one that is to be replaced.
func (s *Sandbox) SetWorkspace(ctx context.Context, dir string) error {
	w, err := capability[WorkspaceSetter](s, "another workspace")
	if err != nil {
		return err
	}
	return about(s.info.ID, w.SetWorkspace(ctx, dir))
}

// Undo takes back what the last n transactions have changed, the newest first, of
// those that joined and were not taken back yet; the last sixteen can be. It fails
// where others have changed the same since, and then that one and those before it
// stay.
//
// Errors: *ConfigError where there are not so many.
func (s *Sandbox) Undo(ctx context.Context, n int) error {
	u, err := capability[Undoer](s, "undo")
	if err != nil {
		return err
	}
	return about(s.info.ID, u.Undo(ctx, n))
}

// removeTime is how long a removal may take.
const removeTime = 30 * time.Second

// Close ends all that runs in the sandbox and removes it: what else was asked of
// it ends with a Result of status lost, or an error. It waits for the removal,
// half a minute at most. That somebody else removed it is no error.
//
// It is safe to call twice, from several goroutines too; after an error it tries
// again.
func (s *Sandbox) Close() error {
	if s.instance == nil {
		return nil
	}
	s.closed.Store(true)
	s.removing.Lock()
	defer s.removing.Unlock()
	if s.removed {
		return nil
	}
	s.files.close()
	ctx, cancel := context.WithTimeout(context.Background(), removeTime)
	defer cancel()
	if err := s.provider.Remove(ctx, s.info.ID); err != nil && !errors.Is(err, ErrNotFound) {
		return about(s.info.ID, err)
	}
	s.removed = true
	return nil
}
