// Package trash removes images, snapshots and discarded layers in the background, since
// that can take long.
package trash

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/store"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
)

// TrashName is the directory of the trash in the data directory. Things that take long to
// remove go there first, and are removed in the background. If the process ends before that,
// the next launcher goes on, or prune does.
const TrashName = "trash"

// Discard moves something of the data directory into the trash, and has it removed
// in the background. On a full disk, where the trash may have no room for another name,
// it removes the thing in place. An error then leaves a rest, and another call goes on.
func (c *Can) Discard(path string) error {
	err := c.moveToTrash(path)
	if !noRoom(err) {
		return err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return erase.IgnoreMissing(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), statedir.CleanupTime)
	defer cancel()
	if err := removeTrash(ctx, path, info.IsDir()); err != nil {
		return fmt.Errorf("remove %s, for which the trash has no room: %w", path, err)
	}
	return nil
}

// noRoom says that a disk is full, or somebody's share of it.
func noRoom(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

func (c *Can) moveToTrash(path string) error {
	trash, err := statedir.OpenData(c.data, TrashName)
	if err != nil {
		return err
	}
	defer trash.Close()
	err = os.Rename(path, filepath.Join(trash.Name(), rand.Text()[:12]+"-"+filepath.Base(path)))
	if err != nil {
		return erase.IgnoreMissing(err)
	}
	c.EmptyLater()
	return nil
}

// EmptyLater empties the trash in the background. Prune reports the things that cannot be
// removed.
func (c *Can) EmptyLater() {
	c.sweeper.Start(func(ctx context.Context) { _ = c.Empty(ctx) })
}

// Empty removes the content of the trash, until ctx is done. Several processes may do so
// at a time.
func (c *Can) Empty(ctx context.Context) error {
	dir := filepath.Join(c.data, TrashName)
	entries, err := os.ReadDir(dir)
	errs := []error{erase.IgnoreMissing(err)}
	for _, e := range entries {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		errs = append(errs, removeTrash(ctx, filepath.Join(dir, e.Name()), e.IsDir()))
	}
	return errors.Join(errs...)
}

// removeTrash removes an image, or a directory: a snapshot's has images, which
// somebody may have mounted.
func removeTrash(ctx context.Context, path string, isDir bool) error {
	if !isDir && strings.HasSuffix(path, record.ImageEnd) {
		return erase.IgnoreMissing(store.RemoveImage(ctx, path))
	}
	images, err := descriptor.Glob(path, "*"+record.ImageEnd)
	for _, image := range images {
		err = errors.Join(err, erase.IgnoreMissing(store.RemoveImage(ctx, image)))
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(path)
}

// sweepGrace is how much longer a process may run for removals in the background. Small ones
// are done by then.
const sweepGrace = 50 * time.Millisecond

// A Sweeper removes things in the background.
type Sweeper struct {
	// Start begins a removal, which ends early if its context is done.
	Start func(removal func(context.Context))
	// Stop ends all removals after sweepGrace and waits for them.
	Stop func()
}

// NewSweeper returns a sweeper, which the caller must stop.
func NewSweeper() *Sweeper {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	return &Sweeper{
		Start: func(removal func(context.Context)) { all.Go(func() { removal(ctx) }) },
		Stop: func() {
			late := time.AfterFunc(sweepGrace, cancel)
			all.Wait()
			late.Stop()
			cancel()
		},
	}
}

// A Can is the trash of a data directory.
type Can struct {
	data    string
	sweeper *Sweeper
}

// New returns the trash of a data directory.
func New(data string, s *Sweeper) *Can { return &Can{data: data, sweeper: s} }
