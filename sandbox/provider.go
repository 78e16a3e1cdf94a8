package sandbox

import (
	"context"
	"os"
	"syscall"
)

// A Provider makes sandboxes of one kind. Most programs need only its name. A program with
// a kind of its own implements Provider, and names it in [ManagerConfig.Providers].
// Optional abilities have interfaces of their own: [Lister], [Watcher], [SnapshotKeeper], [ImageKeeper],
// and io.Closer, which [Manager.Close] calls. sandboxtest.Suite checks the promises of a provider.
//
// All methods may be called at the same time. Errors about conditions match the Err values
// of this package; the Manager adds the sandbox's id.
type Provider interface {
	// Name is the name of this kind: the same word each time.
	Name() string
	// Available says which part the host lacks for this kind, and how to get it. Nil:
	// sandboxes can be made. After an error that matches ErrUnavailable a Manager goes on
	// to the next provider of its preference.
	Available(ctx context.Context) error
	// Create makes a sandbox. It refuses a request that has a field which the
	// provider does not support.
	Create(ctx context.Context, r Request) (Instance, error)
	// Open finds a sandbox by its id, also one that stopped.
	Open(ctx context.Context, id string) (Instance, error)
	// Remove ends all that runs in a sandbox and removes it. ErrNotFound where
	// there is none of this id. It finishes also when ctx is done meanwhile.
	Remove(ctx context.Context, id string) error
}

// A Request describes a sandbox to make.
type Request struct {
	// Name becomes its id; empty: the provider makes one up that is unique.
	Name string
	// Reuse takes the sandbox of that name if it is up and healthy, and
	// replaces it if it is not. Without it, a name that is taken is ErrExists.
	Reuse bool
	// From is the snapshot that it begins with.
	From string
	// Tied ends the sandbox with the Manager, and with the program.
	Tied   bool
	Config Config
}

// An Instance is one sandbox of a provider. Optional abilities have interfaces of their own: [Remover], [Describer],
// [Meter], [Pauser], [Updater], [WorkspaceSetter], [Dialer], [Filer], [Undoer], [Snapshotter], [Attacher],
// [NetworkChanger], [NetworkLogger], [NetworkAsker].
type Instance interface {
	// Info describes it as it was when it was made or opened.
	Info() Info
	// Start runs a command with these three files, each of which may be nil
	// for /dev/null; they stay the caller's. It returns once the command was
	// handed over, and need not wait for it to be executed. ctx bounds the
	// call, not the command. The streams of the command are not for it.
	Start(ctx context.Context, c Command, stdio [3]*os.File) (Execution, error)
}

// An Execution is one command in a sandbox. Optional abilities have interfaces of their own: [Terminator],
// [TerminalHolder], [OutputHolder], [Joiner].
type Execution interface {
	// ID is the id for Attach. It is empty if the command cannot be attached to.
	ID() string
	// Started returns once the command runs, a *NotRunError if it can't.
	Started(ctx context.Context) error
	// Signal sends to the command's process group, or to all that it started.
	Signal(sig syscall.Signal, tree bool) error
	// Wait returns the Result without the output, once the command and all that it has
	// started have ended. The error may be a *NotRunError. Several goroutines may call Wait at once, and again
	// after it has returned: each call gets the same Result.
	Wait(ctx context.Context) (Result, error)
	// Close releases the command. A command that still runs and is not detached is killed.
	Close() error
}

// Events are a subscription to events of sandboxes. Close ends it and all waits for it,
// and is safe to call twice.
type Events interface {
	// Next waits for the next event. After an error of ctx it may be called
	// again. A receiver that is slow loses events, and is told so by one of
	// type EventLost.
	Next(ctx context.Context) (Event, error)
	Close() error
}

// A FileServer is the program that a Filer has started. Wait returns when it has ended,
// with the reason if there is one. Close ends it.
type FileServer interface {
	Wait(ctx context.Context) error
	Close() error
}
