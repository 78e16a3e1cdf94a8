package sandbox

import (
	"context"
	"fmt"
	"iter"
	"net"
	"os"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
)

// The abilities of this file are optional: a provider, an instance or an execution has an ability
// if its type has the methods. A call that needs a missing ability is ErrUnavailable, unless the
// ability says otherwise. sandboxtest.Suite checks the promises of the abilities, but for the log of a network and
// the decisions about it.

// Abilities of a Provider. A provider can also be an io.Closer, which [Manager.Close] calls.
type (
	// A Lister knows all its sandboxes. The sandboxes of another provider are missing in [Manager.List].
	Lister interface {
		List(ctx context.Context) ([]Info, error)
	}

	// A Watcher tells events of its sandboxes.
	Watcher interface {
		Events(ctx context.Context) (Events, error)
	}

	// A SnapshotKeeper has snapshots. The methods are those of [Manager].
	SnapshotKeeper interface {
		Snapshots(ctx context.Context) ([]string, error)
		RemoveSnapshot(ctx context.Context, name string) error
	}

	// An ImageKeeper has images. The methods are those of [Manager].
	ImageKeeper interface {
		PullImage(ctx context.Context, reference string, o PullOptions) (Image, error)
		Images(ctx context.Context) ([]Image, error)
		Image(ctx context.Context, name string) (Image, error)
		RemoveImage(ctx context.Context, name string) (RemovedImages, error)
		PruneImages(ctx context.Context) (RemovedImages, error)
		VerifyImage(ctx context.Context, name string) error
	}
)

// Abilities of an Instance. Methods without a comment are those of [Sandbox].
type (
	// A Remover removes this Instance, as [Provider].Remove does with its id. A later sandbox that has the id by
	// then stays. That the Instance is gone already is no error. Without a Remover, [Sandbox.Close] removes the
	// sandbox that has the id.
	Remover interface {
		Remove(ctx context.Context) error
	}

	// A Describer asks for an Instance's Info anew. Without a Describer, [Sandbox.Info] has the Info of the
	// time when the sandbox was made or opened.
	Describer interface {
		Describe(ctx context.Context) (Info, error)
	}

	// A Meter measures an Instance.
	Meter interface {
		Stats(ctx context.Context) (Stats, error)
	}

	// A Pauser halts all processes of an Instance and has them go on.
	Pauser interface {
		Pause(ctx context.Context) error
		Resume(ctx context.Context) error
	}

	// An Updater changes an Instance's limits. Zero fields stay as they are.
	Updater interface {
		Update(ctx context.Context, l Limits) error
	}

	// A WorkspaceSetter gives an Instance another workspace while it runs.
	WorkspaceSetter interface {
		SetWorkspace(ctx context.Context, dir string) error
	}

	// A Dialer connects to ports of an Instance.
	Dialer interface {
		Dial(ctx context.Context, network, address string) (net.Conn, error)
	}

	// A Filer reaches an Instance's files.
	Filer interface {
		// StartFiles starts the program that serves files, with these pipes for its standard
		// input and output. The pipes stay the caller's. In this module the program is
		// cmd/sandbox-files, and runs inside as the sandbox's user. ctx bounds the call alone.
		StartFiles(ctx context.Context, stdin, stdout *os.File) (FileServer, error)
	}

	// An Undoer takes back the last n transactions of an Instance.
	Undoer interface {
		Undo(ctx context.Context, n int) error
	}

	// A Snapshotter keeps an Instance's files, and throws away their changes.
	Snapshotter interface {
		Snapshot(ctx context.Context, name string) error
		Discard(ctx context.Context) error
	}

	// An Attacher finds an Instance's commands again.
	Attacher interface {
		Execs(ctx context.Context) ([]ExecInfo, error)
		Attach(ctx context.Context, execID string) (Execution, error)
	}

	// A NetworkChanger changes an Instance's network while it runs, and raises its sensitivity. A nil
	// grant leaves the network as far as the level permits it. A level that is empty or below the
	// present one changes nothing.
	NetworkChanger interface {
		ChangeNetwork(ctx context.Context, grant *NetworkGrant, level Sensitivity) (NetworkChange, error)
	}

	// A NetworkLogger has the decisions of NetworkProxied about an Instance.
	NetworkLogger interface {
		NetworkEvents(ctx context.Context, follow bool) iter.Seq2[NetworkEvent, error]
	}

	// A NetworkAsker opens the channel on which its caller decides about an Instance's connections.
	NetworkAsker interface {
		NetworkDecider(ctx context.Context) (*os.File, error)
	}

	// A layerHolder has the writes of an Instance on layers, for [Sandbox.Changes]. Its types are of this module.
	layerHolder interface {
		Describer
		Layers(ctx context.Context) ([]layer.Overlay, error)
		Applied(ctx context.Context, tree string, stamps map[string]layer.Stamp) error
		Verify(ctx context.Context, sync bool) error
		Untie(ctx context.Context, u protocol.Untie) error
	}
)

// Abilities of an Execution. The files stay the Execution's to close.
type (
	// A Terminator has a grace. Terminate ends the command, with all that the command has started: by SIGTERM,
	// and by SIGKILL once the grace of the Command is over. Terminate does not wait for the end. The
	// Result tells that the caller gave up. An Execution without Terminate gets SIGKILL at once.
	Terminator interface {
		Terminate() error
	}

	// A TerminalHolder has the master of its command's terminal, once Started has returned. Nil: the command has
	// no terminal.
	TerminalHolder interface {
		Terminal() *os.File
	}

	// An OutputHolder has the output of its detached command as it is, in files that are open for reading, once
	// Started has returned. A file can be nil.
	OutputHolder interface {
		Output() (stdout, stderr *os.File)
	}

	// A logHolder is an OutputHolder of this module: its files have head and tail.
	logHolder interface {
		Output() (stdout, stderr streams.LogFile)
	}

	// A Joiner tells when the writes of its transaction begin to join, for [Process.Joining]. Without a Joiner
	// that channel is nil.
	Joiner interface {
		Joining() <-chan struct{}
	}
)

// errUnsupported is about a provider.
var errUnsupported = fmt.Errorf("has no such thing, which %w", ErrUnavailable)

// preferredAbility is an ability of the provider that the Manager prefers.
func preferredAbility[T any](m *Manager, what string) (T, error) {
	var none T
	providers, err := m.usedProviders()
	if err != nil {
		return none, err
	}
	able, ok := providers[0].(T)
	if !ok {
		return none, fmt.Errorf("%s of provider %s: %w there", what, providers[0].Name(), errUnsupported)
	}
	return able, nil
}

// preferred asks an ability of the provider that the Manager prefers.
func preferred[T, A any](m *Manager, what string, question func(T) (A, error)) (A, error) {
	able, err := preferredAbility[T](m, what)
	if err != nil {
		var none A
		return none, err
	}
	return question(able)
}

// instanceAbility is an ability of an Instance.
func instanceAbility[T any](s *Sandbox, what string) (T, error) {
	var none T
	if err := s.open(); err != nil {
		return none, err
	}
	able, ok := s.instance.(T)
	if !ok {
		return none, &Error{s.info.ID, fmt.Errorf("%s: provider %s %w", what, s.provider.Name(), errUnsupported)}
	}
	return able, nil
}

// withAbility does something with an ability of an Instance.
func withAbility[T any](s *Sandbox, what string, act func(T) error) error {
	able, err := instanceAbility[T](s, what)
	if err != nil {
		return err
	}
	return errorAbout(s.info.ID, act(able))
}

// query asks an ability of an Instance.
func query[T, A any](s *Sandbox, what string, question func(T) (A, error)) (A, error) {
	able, err := instanceAbility[T](s, what)
	if err != nil {
		var none A
		return none, err
	}
	answer, err := question(able)
	return answer, errorAbout(s.info.ID, err)
}

// terminalOf returns the master of a command's terminal, nil if the command has none.
func terminalOf(e Execution) *os.File {
	if t, ok := e.(TerminalHolder); ok {
		return t.Terminal()
	}
	return nil
}

// logsOf returns the files with the output of a detached command.
func logsOf(e Execution) (stdout, stderr streams.LogFile, ok bool) {
	switch e := e.(type) {
	case logHolder:
		stdout, stderr = e.Output()
		return stdout, stderr, true
	case OutputHolder:
		stdout.File, stderr.File = e.Output()
		return stdout, stderr, true
	}
	return stdout, stderr, false
}

// joiningOf returns the channel of a transaction, nil if the execution cannot tell.
func joiningOf(e Execution) <-chan struct{} {
	if j, ok := e.(Joiner); ok {
		return j.Joining()
	}
	return nil
}
