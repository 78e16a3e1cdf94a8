package server

import (
	"context"
	"os"
	"syscall"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Sources identify a client, and hold the files that it has opened, by path.
type Sources = launcher.Sources

// A Core carries out requests that the rules allow. It is a *launcher.Launcher, by Of.
type Core interface {
	Create(ctx context.Context, r launch.Create, from Sources) (Sandbox, error)
	Open(ctx context.Context, id string) (Sandbox, error)
	// OpenStopped opens a sandbox that may have stopped, for Layers, Applied and Verify.
	OpenStopped(ctx context.Context, id string) (Sandbox, error)
	// Remove asks may, if it is not nil, about the owner of the sandbox to remove.
	Remove(ctx context.Context, id string, may func(owner uint32) bool) error
	Info(ctx context.Context, id string) (spec.Info, error)
	List(ctx context.Context) ([]spec.Info, error)
	// Retired is how many stores of removed sandboxes a user still holds.
	Retired(uid uint32) int
	// Beginning is of a snapshot that a user may have.
	Beginning(ctx context.Context, snapshot string, uid uint32) (launch.Beginning, error)
	// Snapshots and RemoveSnapshot are about those that a user may have.
	Snapshots(ctx context.Context, uid uint32) ([]string, error)
	RemoveSnapshot(ctx context.Context, name string, uid uint32) error
}

// A Sandbox is a handle of one.
type Sandbox interface {
	ID() string
	// Owner is the user that asked for this sandbox, also if another sandbox has its name
	// by now.
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
	Undo(ctx context.Context, n int) error
	Discard(ctx context.Context) error
	Snapshot(ctx context.Context, name string) error
	SetWorkspace(ctx context.Context, dir string, from Sources) error
	// Layers are the trees that the sandbox has overlays of; with unprivileged, as
	// their owner may read them.
	Layers(ctx context.Context, unprivileged bool) ([]launcher.HeldTree, error)
	Applied(ctx context.Context, tree string, stamps []launch.Stamp) error
	// Verify returns launch.ErrDamaged if a write to the sandbox was lost.
	Verify(ctx context.Context, sync bool) error
	Release()
}

// A Process is a command that was started. Started says whether it was executed,
// as Wait does at the latest.
type Process interface {
	ID() string
	Started(ctx context.Context) error
	Terminal() *os.File
	Output() (stdout, stderr *os.File)
	Signal(sig syscall.Signal, tree bool) error
	Wait(ctx context.Context) (spec.Result, error)
	Close() error
}
