package server

import (
	"context"
	"iter"
	"os"
	"syscall"

	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/images"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Sources identify a client, and hold the files that the client has opened, by path.
type Sources = launcher.Sources

// A Condition restricts a removal.
type Condition = launcher.Condition

// A Core carries out requests that the rules allow. Of makes a Core of a *launcher.Launcher.
type Core interface {
	Create(ctx context.Context, r protocol.Create, from Sources) (Sandbox, error)
	Open(ctx context.Context, id string) (Sandbox, error)
	// OpenStopped opens a sandbox that may have stopped, for Layers, Applied and Verify.
	OpenStopped(ctx context.Context, id string) (Sandbox, error)
	// Remove removes a sandbox that the condition permits. It returns false if it has removed nothing: there is no
	// sandbox with the name, or the condition does not permit that sandbox. Neither is an error.
	Remove(ctx context.Context, id string, only Condition) (bool, error)
	// Abandon is Remove, but the sandbox's level of sensitivity stays: its owner has not removed it.
	Abandon(ctx context.Context, id string, only Condition) (bool, error)
	// ForgetLevel ends the level of a user's name that no sandbox has.
	ForgetLevel(id string, uid uint32) error
	Info(ctx context.Context, id string) (spec.Info, error)
	// List describes the sandboxes for whose owner may returns true; nil: all. The list can hold
	// some sandboxes beside an error; it is nil if nothing is known.
	List(ctx context.Context, may func(owner uint32) bool) ([]spec.Info, error)
	// Retired is how many stores of removed sandboxes a user still holds.
	Retired(uid uint32) int
	// PoolStats are the counts of the pool; if user is not nil, of this user's sandboxes only.
	// ResizePool changes its bounds.
	PoolStats(user *uint32) (spec.PoolStats, error)
	ResizePool(c spec.PoolConfig) error
	// Beginning returns the configuration of a snapshot that the user may use.
	Beginning(ctx context.Context, snapshot string, uid uint32) (protocol.Beginning, error)
	// Snapshots and RemoveSnapshot reach the snapshots that the user may use.
	Snapshots(ctx context.Context, uid uint32) ([]string, error)
	RemoveSnapshot(ctx context.Context, name string, uid uint32) error
	// ImageKeeper keeps the images of all users.
	ImageKeeper() *images.Keeper
}

// A Sandbox is a handle of a sandbox.
type Sandbox interface {
	ID() string
	// Owner is the user that asked for this sandbox, also if another sandbox has its name now.
	Owner() uint32
	Info() (spec.Info, error)
	Start(ctx context.Context, c spec.Command, files [3]*os.File) (Process, error)
	StartFiles(ctx context.Context, files [3]*os.File) (Process, error)
	Attach(ctx context.Context, exec string) (Process, error)
	Execs(ctx context.Context) ([]spec.ExecInfo, error)
	Stats(ctx context.Context) (spec.Stats, error)
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	Update(ctx context.Context, l spec.Limits) error
	ChangeNetwork(ctx context.Context, n protocol.NetworkRequest) (spec.NetworkChange, error)
	NetworkEvents(ctx context.Context, follow bool) iter.Seq2[spec.NetworkEvent, error]
	// NetworkDecider opens the channel of internal/network/egress on which a client decides.
	NetworkDecider(ctx context.Context) (*os.File, error)
	Undo(ctx context.Context, n int) error
	Discard(ctx context.Context) error
	Snapshot(ctx context.Context, name string) error
	SetWorkspace(ctx context.Context, dir string, from Sources) error
	// Layers returns the overlaid trees of the sandbox. With unprivileged, the trees are for a
	// client with the rights of their owner only.
	Layers(ctx context.Context, unprivileged bool) ([]launcher.HeldTree, error)
	Applied(ctx context.Context, tree string, stamps []protocol.Stamp) error
	// Verify returns fault.ErrDamaged if a write to the sandbox was lost.
	Verify(ctx context.Context, sync bool) error
	// Untie says whether an apply can begin, and has the host's directories free to go that were renamed in the sandbox.
	Untie(ctx context.Context, u protocol.Untie) error
	// Dial connects to a port of the sandbox.
	Dial(ctx context.Context, target protocol.Target) (*os.File, error)
	Release()
}

// A Process is a command that was started. Started waits for the execution of the command. Wait
// reports a failed execution, too.
type Process interface {
	ID() string
	Started(ctx context.Context) error
	// Joining is closed when the writes of a transaction begin to join; nil for other commands. Wait
	// does not give up a join.
	Joining() <-chan struct{}
	Terminal() *os.File
	Output() (stdout, stderr streams.LogFile)
	Signal(sig syscall.Signal, tree bool) error
	// Terminate ends the command and all that it has started, with its grace. Wait then tells that
	// the client gave up.
	Terminate() error
	Wait(ctx context.Context) (spec.Result, error)
	Close() error
}
