package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/apply"
	disk "github.com/sandbox-runtime/sandbox-runtime/internal/disk/store"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
)

// Resume finishes or takes back the transactions whose owners have ended.
func (v *Files) Resume(ctx context.Context) error {
	r := v.Current()
	store, err := record.OpenStore(r.Init)
	if errors.Is(err, os.ErrNotExist) { // it is ending
		return nil
	}
	if err != nil {
		return err
	}
	defer store.Close()
	if neverTransacted(store) {
		return nil
	}
	return inTurn(ctx, store, func() error { return v.keeper.resumeIn(ctx, r, store) })
}

// resumeIn is resume for a caller that holds the lock of the store's transactions. In a store that takes no more writes
// nothing can be finished, and the sandbox's files cannot be trusted. resumeIn leaves the transactions there: an error
// would keep the user from copying files out.
func (k *Keeper) resumeIn(ctx context.Context, r record.Record, store *os.File) error {
	err := eachTransaction(store, func(number int, dir *os.File, j Journal) error {
		w := &work{keeper: k, record: r, store: store, number: number, dir: dir, Journal: j}
		return w.resume(ctx)
	})
	switch {
	case err == nil:
		return k.discardDrafts(store)
	case errors.Is(disk.TakesWrites(store), unix.EROFS):
		return nil
	}
	return fmt.Errorf("transaction that a process has left half done: %w", err)
}

// discardDrafts removes the transactions that have come to no number.
func (k *Keeper) discardDrafts(store *os.File) error {
	all, err := os.ReadDir(StorePath(store, "tx"))
	errs := []error{err}
	for _, e := range all {
		if isLeftDraft(e.Name()) {
			errs = append(errs, k.DiscardIn(store, "tx/"+e.Name()))
		}
	}
	return errors.Join(errs...)
}

func (w *work) resume(ctx context.Context) error {
	switch {
	case w.State == txJoined, w.State == txRuns && w.Owner.Lives():
		return nil
	case w.State == TxJoins:
		if err := w.finish(ctx, "data", w.Since); err != nil {
			return err
		}
		return w.joined(ctx)
	case w.State == txUndoing:
		if err := w.finish(ctx, "undo", w.Joined); err != nil {
			return err
		}
		return w.undone(ctx)
	}
	return w.keeper.DiscardIn(w.store, "tx/"+strconv.Itoa(w.number))
}

// finish applies the layers with this name to the places that are not done yet. It overwrites changes that others have
// made since that time.
func (w *work) finish(ctx context.Context, name string, since time.Time) error {
	steps, err := w.plan(ctx, name, apply.Options{Since: since, Overwrite: true})
	defer closeSteps(steps)
	if err != nil {
		return err
	}
	return w.carryOut(ctx, steps)
}

// PartialIn are the places of transactions that have joined, or were undone, only in
// part. No thread can finish a transaction without the sandbox's mounts.
func PartialIn(top *os.File) (paths []string, err error) {
	err = eachTransaction(top, func(_ int, _ *os.File, j Journal) error {
		if j.State != TxJoins && j.State != txUndoing {
			return nil
		}
		for _, p := range j.Places {
			paths = append(paths, p.Path)
		}
		return nil
	})
	return paths, err
}
