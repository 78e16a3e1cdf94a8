package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/sandbox-runtime/sandbox-runtime/internal/apply"
	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
)

// resume finishes or takes back the transactions whose owners have ended.
func (v *sandboxFiles) resume(ctx context.Context) error {
	r := v.Current()
	store, err := record.OpenStore(r.Init)
	if errors.Is(err, os.ErrNotExist) { // it is ending
		return nil
	}
	if err != nil {
		return err
	}
	defer store.Close()
	if _, err := os.Lstat(storePath(store, "tx")); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return inTurn(ctx, store, func() error { return v.keeper.resumeIn(ctx, r, store) })
}

// resumeIn is resume for who has the store's transactions to itself.
func (k *layerKeeper) resumeIn(ctx context.Context, r record.Record, store *os.File) error {
	err := eachTransaction(store, func(number int, dir *os.File, j journal) error {
		w := &work{keeper: k, record: r, store: store, number: number, dir: dir, journal: j}
		return w.resume(ctx)
	})
	if err != nil {
		return fmt.Errorf("transaction that a process has left half done: %w", err)
	}
	return k.discardDrafts(store)
}

// discardDrafts removes the transactions that have come to no number.
func (k *layerKeeper) discardDrafts(store *os.File) error {
	all, err := os.ReadDir(storePath(store, "tx"))
	errs := []error{err}
	for _, e := range all {
		if isLeftDraft(e.Name()) {
			errs = append(errs, k.discardIn(store, "tx/"+e.Name()))
		}
	}
	return errors.Join(errs...)
}

func (w *work) resume(ctx context.Context) error {
	switch {
	case w.State == txJoined, w.State == txRuns && w.Owner.Lives():
		return nil
	case w.State == txJoins:
		return w.finishJoin(ctx)
	case w.State == txUndoing:
		if err := w.finishUndo(ctx); err != nil {
			return err
		}
		return w.undone(ctx)
	}
	return w.keeper.discardIn(w.store, "tx/"+strconv.Itoa(w.number))
}

// finishUndo undoes what is not undone yet, whatever others have changed since.
func (w *work) finishUndo(ctx context.Context) error {
	steps, err := w.plan(ctx, "undo", apply.Options{Since: w.Joined, Overwrite: true})
	defer closeSteps(steps)
	if err != nil {
		return err
	}
	return w.carryOut(ctx, steps)
}

func (w *work) finishJoin(ctx context.Context) error {
	steps, err := w.plan(ctx, "data", apply.Options{Since: w.Since, Overwrite: true})
	defer closeSteps(steps)
	if err == nil {
		err = w.carryOut(ctx, steps)
	}
	if err != nil {
		return err
	}
	return w.joined(ctx)
}
