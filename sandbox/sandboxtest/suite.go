package sandboxtest

import (
	"bytes"
	"crypto/rand"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// An Ability is a part of the API that a provider may lack.
type Ability string

// The abilities that a provider may lack.
const (
	// Refusals tell that a command cannot be executed: [sandbox.NotRunError].
	Refusals Ability = "refusals"
	// HostWorkspaces show a directory of the host: Config.Workspace.
	HostWorkspaces Ability = "host workspaces"
	// Directories are those in which commands start: Command.Cwd.
	Directories Ability = "directories"
	// Terminals have the size of Command.Terminal.
	Terminals Ability = "terminals"
	// Detached commands outlive their callers: [sandbox.Attacher].
	Detached Ability = "detached commands"
	// Overlays have changes, with transactions and snapshots: [sandbox.Undoer], [sandbox.Snapshotter] and
	// [sandbox.SnapshotKeeper].
	Overlays Ability = "overlays"
	// Pauses halt a sandbox: [sandbox.Pauser].
	Pauses Ability = "pauses"
	// Limits bound a sandbox, and change while the sandbox runs: [sandbox.Updater].
	Limits Ability = "limits"
	// Statistics are the present use of a sandbox: [sandbox.Meter].
	Statistics Ability = "statistics"
	// Events tell of new and removed sandboxes: [sandbox.Watcher].
	Events Ability = "events"
	// OtherWorkspaces replace the workspace of a sandbox that runs: [sandbox.WorkspaceSetter].
	OtherWorkspaces Ability = "other workspaces"
	// Connections lead to ports of a sandbox: [sandbox.Dialer].
	Connections Ability = "connections"
	// NetworkChanges follow the sensitivity of a sandbox: [sandbox.NetworkChanger].
	NetworkChanges Ability = "network changes"
	// Images can be pulled: [sandbox.ImageKeeper].
	Images Ability = "images"
)

// SuiteOptions describe the provider of a [Suite].
type SuiteOptions struct {
	// Config is the configuration of all sandboxes. The suite adds a workspace, or overlays, and the fields that a
	// claim is about.
	Config sandbox.Config
	// Without are the abilities that the provider lacks. The suite checks that a call which needs one of them is an
	// error that matches ErrUnavailable, or a *ConfigError.
	Without []Ability
}

// Suite tests that a provider keeps the promises of [sandbox.Provider], of its optional abilities, and of
// [sandbox.Manager] and [sandbox.Sandbox] with this provider. Each claim is a subtest.
//
// The provider must run real commands. The claims use sh and the common programs of a POSIX system, in files below the
// directory that the environment variable SUITE_ROOT of the commands names. Without the variable that is /. Each sandbox
// has a workspace of its own, in which commands start.
//
// Suite makes a Manager of the provider. The last claim closes both.
func Suite(t *testing.T, p sandbox.Provider, o SuiteOptions) {
	w := newWorld(t, p, o)
	for _, c := range claims() {
		t.Run(c.name, func(t *testing.T) {
			if !slices.Contains(o.Without, c.needs) {
				c.check(w.within(t))
			}
		})
	}
}

// A claim is one promise. needs is empty if each provider has to keep it.
type claim struct {
	name  string
	needs Ability
	check func(w *world)
}

// claims are all claims, in the order of the subtests. The last one closes the provider.
func claims() []claim {
	return slices.Concat(commandClaims, streamClaims, endClaims, fileClaims, layerClaims, abilityClaims, lifeClaims)
}

// A world has the provider of a claim, and makes sandboxes.
type world struct {
	testing.TB
	*sandbox.Manager
	provider sandbox.Provider
	options  SuiteOptions
	// patience is how long a busy machine may take.
	patience time.Duration
}

func newWorld(t testing.TB, p sandbox.Provider, o SuiteOptions) *world {
	t.Helper()
	m, err := sandbox.NewManager(sandbox.ManagerConfig{Providers: []sandbox.Provider{p}, Prefer: []string{p.Name()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return &world{TB: t, Manager: m, provider: p, options: o, patience: 2 * time.Minute}
}

// within is the world for a subtest.
func (w *world) within(t testing.TB) *world {
	own := *w
	own.TB = t
	return &own
}

// must ends the claim after an error.
func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// close closes something that the claim has made.
func (w *world) close(c io.Closer) {
	w.Helper()
	if err := c.Close(); err != nil {
		w.Error(err)
	}
}

// hostDir makes a directory of the host that each user can write.
func (w *world) hostDir() string {
	w.Helper()
	dir := w.TempDir()
	w.must(os.Chmod(dir, 0o777))
	return dir
}

// config is the configuration of a sandbox with a workspace of the host.
func (w *world) config() sandbox.Config {
	w.Helper()
	c := w.options.Config
	c.Workspace = w.hostDir()
	return c
}

// box makes a sandbox with a workspace.
func (w *world) box(options ...sandbox.CreateOption) *sandbox.Sandbox {
	w.Helper()
	return w.create(w.config(), options...)
}

func (w *world) create(c sandbox.Config, options ...sandbox.CreateOption) *sandbox.Sandbox {
	w.Helper()
	sb, err := w.Create(w.Context(), c, options...)
	w.must(err)
	w.Cleanup(func() { w.close(sb) })
	return sb
}

// name is a name that no other claim uses.
func (w *world) name() string {
	return "suite-" + strings.ToLower(rand.Text())
}

func shell(line string) sandbox.Command { return sandbox.Command{Args: []string{"sh", "-c", line}} }

// exec runs a command that has a Result.
func (w *world) exec(sb *sandbox.Sandbox, c sandbox.Command) sandbox.Result {
	w.Helper()
	r, err := sb.Exec(w.Context(), c)
	w.must(err)
	return r
}

func (w *world) run(sb *sandbox.Sandbox, line string) sandbox.Result {
	w.Helper()
	return w.exec(sb, shell(line))
}

// start starts a command whose standard output goes to the buffer. The command ends with the claim.
func (w *world) start(sb *sandbox.Sandbox, c sandbox.Command) (*sandbox.Process, *buffer) {
	w.Helper()
	out := &buffer{}
	c.Stdout = out
	p, err := sb.Start(w.Context(), c)
	w.must(err)
	w.Cleanup(func() { _ = p.Close() }) // the claim has looked at the end, if the end matters
	return p, out
}

// end returns the end of a command, which is to come soon.
func (w *world) end(p *sandbox.Process) (r sandbox.Result, err error) {
	w.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r, err = p.Wait()
	}()
	select {
	case <-ended:
		return r, err
	case <-time.After(w.patience):
		w.Fatalf("the command does not end within %v", w.patience)
		return sandbox.Result{}, nil
	}
}

// output checks that a line succeeds with this output.
func (w *world) output(sb *sandbox.Sandbox, line, want string) {
	w.Helper()
	if r := w.run(sb, line); !r.OK() || string(r.Stdout) != want {
		w.Errorf("%s: %q, want %q; %s: %s", line, r.Stdout, want, r.Reason, r.Stderr)
	}
}

// eventually waits until a condition holds.
func (w *world) eventually(what string, holds func() bool) {
	w.Helper()
	for end := time.Now().Add(w.patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			w.Fatalf("not within %v: %s", w.patience, what)
		}
	}
}

// A buffer can be read while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// await waits until a buffer begins with a text.
func (w *world) await(b *buffer, want string) {
	w.Helper()
	w.eventually(want, func() bool { return strings.HasPrefix(b.String(), want) })
}
