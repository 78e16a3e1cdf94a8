// Package sandboxtest has a sandbox provider that runs nothing, for tests of programs that
// embed package sandbox. A Go function plays the commands:
//
//	fake := &sandboxtest.Fake{Run: func(ctx context.Context, p *sandboxtest.Program) int {
//		fmt.Fprintln(p.Stdout, "ok")
//		return 0
//	}}
//	m, err := sandbox.NewManager(sandbox.ManagerConfig{
//		Providers: []sandbox.Provider{fake}, Prefer: []string{"fake"},
//	})
//
// All results name the fake: Info names the provider "fake", and Results have the isolation "none"
// and a note. A fake cannot tell whether a program would work in a sandbox.
//
// [Suite] tests that a provider of real sandboxes keeps the promises of package sandbox.
package sandboxtest

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Name is the provider's name.
const Name = "fake"

// Note is in each Result.
const Note = "nothing was run: this is the answer of a fake"

// A Program is the argument of Fake.Run: a command to play.
type Program struct {
	// Sandbox of the command.
	Sandbox sandbox.Info
	// Command is the caller's, without its streams.
	Command sandbox.Command
	// If the caller gave no stream, Stdin is empty, and Stdout and Stderr discard.
	Stdin          io.Reader
	Stdout, Stderr io.Writer

	instance    *instance
	transaction *transaction // nil: the command is in none
}

// A Fake is a provider. Commands of its zero value succeed and write nothing. A Fake has
// transactions, snapshots, images, the changes of overlays, and detached commands, which end with the Fake.
// A Fake copies each overlaid directory, so these should be small. Terminals, statistics and events
// are ErrUnavailable. Several goroutines may use a Fake, which can call Run in several at a time.
type Fake struct {
	// Run plays a command and returns its exit code; only the lowest eight bits count. ctx is
	// done when the command has to end: after its timeout, by a signal, when its caller gives up, or
	// with its sandbox. This is the SIGTERM of the command: it ends when Run returns, at the latest
	// after its grace. By a signal it ends at once. Run may go on after the end.
	Run func(ctx context.Context, p *Program) int
	// Result, if set, changes the Result of a command, for example to say that memory ran
	// out. It cannot change the marks of a fake: ID, Isolation, Limits and Note.
	Result func(p *Program, r *sandbox.Result)
	// Missing is the error of Available and Create.
	Missing error

	// mu guards the fields below.
	mu        sync.Mutex
	sandboxes map[string]*instance
	snapshots map[string]*snapshot
	commands  []sandbox.Command
	created   []sandbox.Config
	// images are by id, and imageNames are the ids by full name.
	images     map[string]sandbox.Image
	imageNames map[string]string
}

// Commands are all commands that were started, in order, without their streams.
func (f *Fake) Commands() []sandbox.Command {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.commands)
}

// Created are the configurations of all sandboxes that were made, in order.
func (f *Fake) Created() []sandbox.Config {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.created)
}

// Name implements [sandbox.Provider].
func (f *Fake) Name() string { return Name }

// Available implements [sandbox.Provider].
func (f *Fake) Available(context.Context) error { return f.Missing }

// Create implements [sandbox.Provider].
func (f *Fake) Create(_ context.Context, r sandbox.Request) (sandbox.Instance, error) {
	if f.Missing != nil {
		return nil, f.Missing
	}
	config, err := r.Config.Complete()
	if err != nil {
		return nil, err
	}
	if config.Overlays, err = checkOverlays(config.Overlays); err != nil {
		return nil, err
	}
	if config.Storage == "" { // as a launcher decides
		config.Storage = sandbox.StorageDisk
		if r.Tied {
			config.Storage = sandbox.StorageMemory
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if there, ok := f.sandboxes[r.Name]; ok {
		if !r.Reuse {
			return nil, sandbox.ErrExists
		}
		found := *there
		found.info.Reused = true
		return &found, nil
	}
	from, err := f.snapshotLocked(r, config)
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(context.Background())
	i := &instance{fake: f, ctx: ctx, end: end, state: &state{}, info: sandbox.Info{
		ID: cmp.Or(r.Name, "fake-"+strings.ToLower(rand.Text())), Provider: Name, State: sandbox.StateRunning, From: r.From,
		Config: config, Created: time.Now(), Isolation: sandbox.IsolationNone, Limits: spec.NoLimits(),
	}}
	if err := i.begin(from); err != nil {
		return nil, errors.Join(err, i.remove())
	}
	if f.sandboxes == nil {
		f.sandboxes = map[string]*instance{}
	}
	f.sandboxes[i.info.ID] = i
	f.created = append(f.created, r.Config)
	return i, nil
}

// Open implements [sandbox.Provider].
func (f *Fake) Open(_ context.Context, id string) (sandbox.Instance, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if i, ok := f.sandboxes[id]; ok {
		return i, nil
	}
	return nil, sandbox.ErrNotFound
}

// Remove implements [sandbox.Provider].
func (f *Fake) Remove(_ context.Context, id string) error {
	f.mu.Lock()
	i, ok := f.sandboxes[id]
	delete(f.sandboxes, id)
	f.mu.Unlock()
	if !ok {
		return sandbox.ErrNotFound
	}
	return i.remove()
}

// Remove implements [sandbox.Remover].
func (i *instance) Remove(context.Context) error {
	f := i.fake
	f.mu.Lock()
	there := f.sandboxes[i.info.ID]
	isThere := there != nil && there.state == i.state // a later sandbox can have the id
	if isThere {
		delete(f.sandboxes, i.info.ID)
	}
	f.mu.Unlock()
	if !isThere {
		return nil
	}
	return i.remove()
}

// List implements [sandbox.Lister].
func (f *Fake) List(context.Context) ([]sandbox.Info, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var infos []sandbox.Info
	for _, i := range f.sandboxes {
		infos = append(infos, i.info)
	}
	return infos, nil
}

// Close ends all sandboxes, as [sandbox.Manager.Close] has it.
func (f *Fake) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for i := range maps.Values(f.sandboxes) {
		errs = append(errs, i.remove())
	}
	clear(f.sandboxes)
	return errors.Join(errs...)
}
