package overlay

import (
	"sync"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/throttle"
	"github.com/sandbox-runtime/sandbox-runtime/internal/trash"
)

// A Keeper keeps the layers of all sandboxes of a launcher.
type Keeper struct {
	record.Roots
	// self identifies the launcher's process.
	self    func() (process.ID, error)
	sweeper *trash.Sweeper
	trash   *trash.Can
	// tending waits for the goroutines that sync snapshots.
	tending *sync.WaitGroup
}

// NewKeeper returns the keeper of a launcher, which waits for tending before it ends.
func NewKeeper(in record.Roots, self func() (process.ID, error), s *trash.Sweeper, can *trash.Can, tending *sync.WaitGroup) *Keeper {
	return &Keeper{Roots: in, self: self, sweeper: s, trash: can, tending: tending}
}

// Files are the files of a sandbox as layers: transactions, snapshots, discards and
// forks change which layers there are.
type Files struct {
	*record.Sandbox
	keeper *Keeper
	lift   *throttle.Lift
}

// Files returns the files of a sandbox. lift is nil for a sandbox in which nothing runs yet.
func (k *Keeper) Files(box *record.Sandbox, lift *throttle.Lift) *Files {
	return &Files{Sandbox: box, keeper: k, lift: lift}
}
