package sandbox

import (
	"context"
	"net"
	"os"
	"syscall"
)

// A Provider makes sandboxes of one kind. Most programs need only its name. A program with
// a kind of its own implements Provider, and names it in [ManagerConfig.Providers].
// Interfaces of their own are for optional abilities: [Lister], [Watcher], [SnapshotKeeper], [ImageKeeper],
// and io.Closer, which [Manager.Close] calls.
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

// An Instance is one sandbox of a provider. Interfaces of their own are for optional
// abilities: [Remover], [Describer], [Meter], [Pauser], [Updater], [NetworkChanger], [WorkspaceSetter], [Undoer],
// [Snapshotter], [Attacher], [Filer], [Dialer].
type Instance interface {
	// Info describes it as it was when it was made or opened.
	Info() Info
	// Start runs a command with these three files, each of which may be nil
	// for /dev/null; they stay the caller's. It returns once the command was
	// handed over, and need not wait for it to be executed. ctx bounds the
	// call, not the command. The streams of the command are not for it.
	Start(ctx context.Context, c Command, stdio [3]*os.File) (Execution, error)
}

// An Execution is one command in a sandbox. One with a terminal has a method
// Terminal() *os.File with the master, one that is attached to a detached
// command Output() (stdout, stderr *os.File), with the files that its output
// is kept in, as it is, open for reading. Both stay the Execution's to close. One of a transaction can have a
// method Joining, for [Process.Joining].
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

// A Terminator is an Execution with a grace. Terminate has it end, with all that it has started:
// by SIGTERM, and by SIGKILL once the grace of the Command is over. It does not wait for the end. The
// Result tells that the caller gave up. Another Execution gets SIGKILL at once.
type Terminator interface {
	Terminate() error
}

// A Lister knows which sandboxes there are.
type Lister interface {
	List(ctx context.Context) ([]Info, error)
}

// A Watcher tells events of its sandboxes.
type Watcher interface {
	Events(ctx context.Context) (Events, error)
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

// A Remover removes this Instance, as [Provider].Remove does with its id. A later sandbox that has the id by
// then stays. Without a Remover, [Sandbox.Close] removes the sandbox that has the id.
type Remover interface {
	Remove(ctx context.Context) error
}

// A Describer asks for an Instance's Info anew.
type Describer interface {
	Describe(ctx context.Context) (Info, error)
}

// A Meter measures an Instance.
type Meter interface {
	Stats(ctx context.Context) (Stats, error)
}

// A Pauser halts all processes of an Instance and has them go on.
type Pauser interface {
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
}

// An Updater changes an Instance's limits; zero fields stay as they are.
type Updater interface {
	Update(ctx context.Context, l Limits) error
}

// A WorkspaceSetter gives an Instance another workspace while it runs.
type WorkspaceSetter interface {
	SetWorkspace(ctx context.Context, dir string) error
}

// A Dialer connects to ports of an Instance.
type Dialer interface {
	Dial(ctx context.Context, network, address string) (net.Conn, error)
}

// A Filer reaches an Instance's files.
type Filer interface {
	// StartFiles starts the program that serves files, with these pipes for its standard
	// input and output. The pipes stay the caller's. In this module the program is
	// cmd/sandbox-files, and runs inside as the sandbox's user. ctx bounds the call alone.
	StartFiles(ctx context.Context, stdin, stdout *os.File) (FileServer, error)
}

// A FileServer is the program that a Filer has started. Wait returns when it has ended,
// with the reason if there is one. Close ends it.
type FileServer interface {
	Wait(ctx context.Context) error
	Close() error
}

// An Undoer takes back the last n transactions of an Instance.
type Undoer interface {
	Undo(ctx context.Context, n int) error
}

// A Snapshotter keeps an Instance's files, and throws away their changes.
type Snapshotter interface {
	Snapshot(ctx context.Context, name string) error
	Discard(ctx context.Context) error
}

// A SnapshotKeeper has snapshots.
type SnapshotKeeper interface {
	Snapshots(ctx context.Context) ([]string, error)
	RemoveSnapshot(ctx context.Context, name string) error
}

// An ImageKeeper has images. The methods are those of [Manager].
type ImageKeeper interface {
	PullImage(ctx context.Context, reference string, o PullOptions) (Image, error)
	Images(ctx context.Context) ([]Image, error)
	Image(ctx context.Context, name string) (Image, error)
	RemoveImage(ctx context.Context, name string) (RemovedImages, error)
	PruneImages(ctx context.Context) (RemovedImages, error)
	VerifyImage(ctx context.Context, name string) error
}

// An Attacher finds an Instance's commands again.
type Attacher interface {
	Execs(ctx context.Context) ([]ExecInfo, error)
	Attach(ctx context.Context, execID string) (Execution, error)
}
