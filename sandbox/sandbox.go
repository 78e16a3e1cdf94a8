package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
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
	s.files = &Files{sandbox: s, connecting: semaphore.NewWeighted(1)}
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
	return info, errorAbout(s.info.ID, err)
}

// Execs describes the running commands, with any starter, and the detached ones that have
// ended and whose Result nobody has taken yet.
func (s *Sandbox) Execs(ctx context.Context) ([]ExecInfo, error) {
	return query(s, "execs", func(a Attacher) ([]ExecInfo, error) { return a.Execs(ctx) })
}

// Attach attaches to a detached command by its id, with any starter. The kept output and
// all later output go to the writers, as those of a Command; without a writer, into the
// Result. One writer for both streams gets one call at a time. Wait returns when the command
// has ended, and no other call gets its Result. If ctx ends before, Wait returns its error and
// the command goes on.
//
// Errors: ErrNotFound if there is no detached command of this id, or its Result was taken;
// ErrUnavailable if the provider has no detached commands.
func (s *Sandbox) Attach(ctx context.Context, execID string, stdout, stderr io.Writer) (*Process, error) {
	a, err := instanceAbility[Attacher](s, "attach to a command")
	if err != nil {
		return nil, err
	}
	p, err := attach(ctx, s, a, execID, stdout, stderr)
	if err != nil {
		return nil, errorAbout(s.info.ID, fmt.Errorf("exec %s: %w", execID, err))
	}
	return p, nil
}

// Stats are the present use of the sandbox, and the most use.
func (s *Sandbox) Stats(ctx context.Context) (Stats, error) {
	return query(s, "stats", func(m Meter) (Stats, error) { return m.Stats(ctx) })
}

// Pause halts all processes in the sandbox, until Resume. That it is paused is
// no error.
func (s *Sandbox) Pause(ctx context.Context) error {
	return withAbility(s, "pause", func(p Pauser) error { return p.Pause(ctx) })
}

// Resume has a paused sandbox go on. That it is not paused is no error.
func (s *Sandbox) Resume(ctx context.Context) error {
	return withAbility(s, "resume", func(p Pauser) error { return p.Resume(ctx) })
}

// Update changes the sandbox's limits while it runs. Zero fields stay as they
// are.
//
// Errors: *ConfigError for a limit that is out of bounds.
func (s *Sandbox) Update(ctx context.Context, l Limits) error {
	return withAbility(s, "update of limits", func(u Updater) error { return u.Update(ctx, l) })
}

// SetWorkspace puts a directory of this host at /workspace, in place of the private
// workspace or of another one, as Config.Workspace does from the start. So a sandbox can
// be made before its task is known.
//
// The first directory needs a sandbox without other processes: these may set the set-group-ID
// bit of files, which no file of the host may get.
//
// Errors: *ConfigError for a directory that cannot be shown, ErrBusy if something in the
// sandbox uses the present workspace, or if a process runs before the first directory comes.
func (s *Sandbox) SetWorkspace(ctx context.Context, dir string) error {
	s.files.endUnused()
	return withAbility(s, "another workspace", func(w WorkspaceSetter) error { return w.SetWorkspace(ctx, dir) })
}

// Dial connects to a port of the sandbox, with any kind of network and without publishing the
// port. The network is tcp or udp, and may end in 4 or 6. The host of the address is empty,
// localhost or a loopback address: TCP then tries 127.0.0.1 and ::1, and UDP takes 127.0.0.1.
//
// Errors: *ConfigError for another network or address, ErrNotRunning, ECONNREFUSED if nothing listens.
func (s *Sandbox) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return query(s, "connections", func(d Dialer) (net.Conn, error) { return d.Dial(ctx, network, address) })
}

// Undo takes back the last n transactions that joined and were not taken back yet, the
// newest first. The last sixteen can be taken back. If other commands have changed the
// same paths since, Undo fails: that transaction and older ones stay.
//
// Errors: *ConfigError if there are fewer transactions.
func (s *Sandbox) Undo(ctx context.Context, n int) error {
	return withAbility(s, "undo", func(u Undoer) error { return u.Undo(ctx, n) })
}

// removeTime is how long a removal may take after the grace of the commands.
const removeTime = 30 * time.Second

// Close ends all that runs in the sandbox and removes the sandbox. Calls under way end
// with a Result of status lost, or an error. After Close no process of the
// sandbox runs, and the name is free. The launcher removes cgroups and files right after;
// [Manager.Close] waits for these. If another process has removed the sandbox, that is no error, and a
// later sandbox with the name stays.
//
// Close is safe to call twice, also from several goroutines; after an error it tries
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
	ctx, cancel := context.WithTimeout(context.Background(), removeTime+s.info.Config.Grace.Time())
	defer cancel()
	err := s.remove(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("removal has taken more than %s: a killed process has not ended, or the launcher does not answer; run \"prune\" later: %w", removeTime, err)
	}
	if err != nil && !errors.Is(err, ErrNotFound) {
		return errorAbout(s.info.ID, err)
	}
	s.removed = true
	return nil
}

// remove removes the sandbox, and no later one with its id if the provider can tell them apart.
func (s *Sandbox) remove(ctx context.Context) error {
	if r, ok := s.instance.(Remover); ok {
		return r.Remove(ctx)
	}
	return s.provider.Remove(ctx, s.info.ID)
}
