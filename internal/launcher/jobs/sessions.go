package jobs

import (
	"context"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/overlay"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/filewatch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Sessions are the sandboxes that a process works with.
type Sessions struct {
	Config

	// execs numbers the execs of this process, from after first on. first is random, so that two launchers of one process
	// do not use the same numbers.
	execs atomic.Uint32
	first uint32

	Groups filewatch.Pool
	// Deadlines are the timers of detached execs.
	Deadlines deadlines

	// mu guards the field below.
	mu    sync.Mutex
	known map[string]*Session // by id
}

// Config is the part of a launcher that its sessions share.
type Config struct {
	record.Roots
	// Self identifies the process, OpenGroup opens the cgroup of a sandbox, and
	// FilesProgram is the program that serves files inside.
	Self         func() (process.ID, error)
	OpenGroup    func(id string) (*cgroups.Group, error)
	FilesProgram func() (*os.File, error)
	Layers       *overlay.Keeper
	// Traffic is the use of the network by a sandbox since its start.
	Traffic func(ctx context.Context, id string) (spec.Traffic, error)
	// Refusals are the reasons of the last refusals by the network since a time, each once. With isFailedToo they have
	// those of connections that have not reached their server. TellsFailures says that a command needs these.
	Refusals      func(ctx context.Context, id string, since time.Time, isFailedToo bool, most int) []string
	TellsFailures func(record.Record) bool
	// Alone calls f while no other process changes the sandbox. First it ends the half-done work of
	// killed processes.
	Alone func(ctx context.Context, v *Session, f func() error) error
	// Tending counts goroutines of sessions. They remove leaves, or make the kernel do a slow
	// step early. The launcher waits for all of them before it ends.
	Tending *sync.WaitGroup
}

// New returns the sessions of a launcher. The launcher must close them.
func New(c Config) *Sessions {
	s := &Sessions{
		Config: c, known: map[string]*Session{}, first: rand.Uint32(),
		Deadlines: deadlines{All: map[DeadlineKey]*deadline{}, closing: make(chan struct{})},
	}
	s.execs.Store(s.first)
	return s
}

// Open returns the session of the sandbox that the record describes, up or not. The caller
// must release the session.
func (l *Sessions) Open(id string) (*Session, error) {
	if err := l.CheckRoot(); err != nil {
		return nil, err
	}
	now, err := record.VersionOf(l.Dir(id))
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.known[id]; known != nil && known.IsAt(now) {
		known.users++
		return known, nil
	}
	r, err := record.Read(l.Dir(id))
	if err != nil {
		return nil, err
	}
	return l.openLocked(id, r, now, nil)
}

// Record returns the record of a sandbox, with the errors of [record.Read]. If a session has the present version,
// Record does not read the file.
func (l *Sessions) Record(id string) (record.Record, error) {
	now, err := record.VersionOf(l.Dir(id))
	l.mu.Lock()
	known := l.known[id]
	l.mu.Unlock()
	if err == nil && known != nil && known.IsAt(now) {
		return known.Current(), nil
	}
	return record.Read(l.Dir(id))
}

// OpenWritten is like Open, but uses the record that this process has just written. A new session takes the first
// leaf, which can be nil. The caller must hold the sandbox's directory, and release the session.
func (l *Sessions) OpenWritten(id string, r record.Record, first *FirstLeaf) (*Session, error) {
	now, err := record.VersionOf(l.Dir(id))
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.openLocked(id, r, now, first)
}

// openLocked returns the session of the sandbox with this record. The caller must hold mu.
func (l *Sessions) openLocked(id string, r record.Record, now record.Version, first *FirstLeaf) (*Session, error) {
	if known := l.known[id]; known != nil && (known.IsAt(now) || known.refresh(r, now)) {
		known.users++
		return known, nil
	}
	given, made := first.take()
	if !made {
		var err error
		if given.group, err = l.OpenGroup(id); err != nil {
			return nil, err
		}
	}
	fresh := newSession(l, id, r, now, given.group)
	if made {
		fresh.Leaves.Spares = append(fresh.Leaves.Spares, given.leaf)
		fresh.TakeState(given.state)
	}
	l.known[id] = fresh
	return fresh, nil
}

// Len is the number of sandboxes that this process works with.
func (l *Sessions) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.known)
}

// Forget drops the session of a sandbox that is gone.
func (l *Sessions) Forget(id string) {
	l.mu.Lock()
	gone := l.known[id]
	delete(l.known, id)
	l.mu.Unlock()
	l.Deadlines.Stop(func(key DeadlineKey) bool { return key.ID == id })
	if gone == nil {
		return
	}
	gone.Mu.Lock()
	gone.gone = true
	gone.Mu.Unlock()
	gone.Drop()
}

// Close drops the connections and cgroups of all sessions. No call may be under way.
func (l *Sessions) Close() {
	l.Deadlines.close()
	l.Tending.Wait()
	l.mu.Lock()
	all := slices.Collect(maps.Values(l.known))
	l.mu.Unlock()
	for _, v := range all {
		v.Drop()
	}
	l.Tending.Wait()
}
