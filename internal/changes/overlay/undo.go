package overlay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/apply"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
)

// Undo takes back the last n transactions that joined, the newest first. If others have
// changed the same paths since, that is a conflict: that transaction and older ones stay. All
// processes of the sandbox stand still meanwhile. The caller must hold the sandbox.
//
// Errors: *[fault.ConfigError] if there are fewer transactions, and those of Pause.
func (v *Files) Undo(ctx context.Context, n int) error {
	if n < 1 {
		return &fault.ConfigError{Reason: fmt.Sprintf("undo of %d transactions; at least one", n)}
	}
	r := v.Current()
	store, err := record.OpenStore(r.Init)
	if err != nil {
		return v.Why(ctx, &fault.SandboxError{ID: v.ID, Err: fault.ErrNotRunning})
	}
	defer store.Close()
	return inTurn(ctx, store, func() error {
		note, err := v.whileStill(func() (ended bool, err error) {
			err = v.undoLast(ctx, r, store, n)
			half, unread := PartialIn(store)
			return len(half) == 0 && unread == nil, errors.Join(err, unread)
		})
		if err == nil && !errors.Is(note, errNoFreezer) {
			err = note
		}
		return err
	})
}

// undoLast takes back the last n transactions.
func (v *Files) undoLast(ctx context.Context, r record.Record, store *os.File, n int) error {
	if err := v.keeper.resumeIn(ctx, r, store); err != nil {
		return err
	}
	all, err := joinedIn(store)
	if err != nil {
		return err
	}
	if len(all) < n {
		return &fault.ConfigError{Reason: fmt.Sprintf("undo %d: sandbox %s has %d transactions that can be undone (exec --transaction makes them)", n, v.ID, len(all))}
	}
	for i, number := range slices.Backward(all[len(all)-n:]) {
		if err := v.undoOne(ctx, r, store, number); err != nil {
			return undoError(number, n-1-i, err)
		}
	}
	return nil
}

// undoError is the error of a transaction that was not taken back, after newer ones that were.
func undoError(number, before int, err error) error {
	err = fmt.Errorf("undo of transaction %d: %w", number, err)
	switch {
	case before == 1:
		err = fmt.Errorf("%w; 1 newer was taken back", err)
	case before > 1:
		err = fmt.Errorf("%w; %d newer were taken back", err, before)
	}
	if _, ok := errors.AsType[*conflictError](err); ok {
		err = fmt.Errorf("%w; undo does not overwrite such changes: correct the files with a command, or drop all writes to overlays with discard", err)
	}
	return err
}

// undoOne takes back one transaction.
func (v *Files) undoOne(ctx context.Context, r record.Record, store *os.File, number int) error {
	dir, err := descriptor.OpenDir(store, "tx/"+strconv.Itoa(number))
	if err != nil {
		return err
	}
	defer dir.Close()
	w := &work{keeper: v.keeper, record: r, store: store, number: number, dir: dir}
	if w.Journal, err = readJournal(dir); err != nil {
		return err
	}
	if err := w.undo(ctx, apply.Options{Since: w.Joined}); err != nil {
		return err
	}
	w.Undoing.Paths = nil // all paths: the undo was so short that nobody else has changed any
	return w.undone(ctx)
}

// undone ends a transaction that was undone. First the other transactions that can be
// undone learn of it.
func (w *work) undone(ctx context.Context) error {
	if err := w.tellOthers(ctx); err != nil {
		return err
	}
	return w.keeper.DiscardIn(w.store, "tx/"+strconv.Itoa(w.number))
}

// tellOthers notes an undo in the other transactions that can be undone.
func (w *work) tellOthers(ctx context.Context) error {
	if w.Undoing == nil { // an earlier version has taken back a join that failed
		return nil
	}
	end, err := record.Settled(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	w.Undoing.To = end
	return errors.Join(alsoOurs(w.store, *w.Undoing), w.passOn())
}

// alsoOurs notes a span in each transaction that can be undone: the changes of that span are
// the runtime's own.
func alsoOurs(store *os.File, s span) error {
	return eachTransaction(store, func(_ int, dir *os.File, j Journal) error {
		if j.State != txJoined {
			return nil
		}
		j.Ours = append(j.Ours, s)
		return j.Write(dir)
	})
}

func (w *work) undo(ctx context.Context, o apply.Options) error {
	steps, err := w.plan(ctx, "undo", o)
	defer closeSteps(steps)
	if err != nil {
		return err
	}
	begun, err := record.Settled(ctx)
	if err != nil {
		return err
	}
	w.State, w.Undoing = txUndoing, &span{From: begun, Paths: w.touched(steps)}
	if err := w.Write(w.dir); err != nil {
		return err
	}
	err = w.carryOut(ctx, steps)
	if _, ok := errors.AsType[*apply.ConflictError](err); ok && w.Done == 0 && !errors.Is(err, apply.ErrUnfinished) { // nothing is undone, and a resume must not go on with it
		w.State, w.Undoing = txJoined, nil
		err = errors.Join(err, w.Write(w.dir))
	}
	return err
}

// touched are the paths that steps change, and the directories above them.
func (w *work) touched(steps []*step) []string {
	all := map[string]bool{}
	for _, s := range steps {
		top := w.Places[s.place].Path
		all[top] = true
		for _, c := range s.plan.Changes() {
			for at := path.Join(top, c.Path); !all[at]; at = path.Dir(at) {
				all[at] = true
			}
		}
	}
	return slices.AppendSeq([]string{}, maps.Keys(all))
}

// joinedIn are the numbers of the transactions that can be undone, in the order in
// which they joined.
func joinedIn(store *os.File) (numbers []int, err error) {
	times := map[int]time.Time{}
	err = eachTransaction(store, func(number int, _ *os.File, j Journal) error {
		if j.State == txJoined {
			numbers = append(numbers, number)
			times[number] = j.Joined
		}
		return nil
	})
	slices.SortFunc(numbers, func(a, b int) int {
		return cmp.Or(times[a].Compare(times[b]), a-b)
	})
	return numbers, err
}

// eachTransaction calls f with all that there is in a store.
func eachTransaction(store *os.File, f func(number int, dir *os.File, j Journal) error) error {
	all, err := descriptor.OpenDir(store, "tx")
	if err != nil {
		return erase.IgnoreMissing(err)
	}
	defer all.Close()
	numbers, err := numbered(all)
	if err != nil {
		return err
	}
	slices.Sort(numbers)
	for _, number := range numbers {
		dir, err := descriptor.OpenDir(all, strconv.Itoa(number))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		j, err := readJournal(dir)
		if err == nil {
			err = f(number, dir, j)
		}
		dir.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// trimUndo gives up the oldest transactions that can be undone.
func (k *Keeper) trimUndo(store *os.File) error {
	all, err := joinedIn(store)
	if err != nil {
		return err
	}
	for _, number := range all[:max(0, len(all)-maxUndo)] {
		if err := k.DiscardIn(store, "tx/"+strconv.Itoa(number)); err != nil {
			return err
		}
	}
	return nil
}
