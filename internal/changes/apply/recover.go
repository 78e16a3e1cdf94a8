package apply

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
)

// A Recovery tells how killed applies ended.
type Recovery struct {
	// Finished says that all steps of an apply were done. TakenBack says that a step failed,
	// mostly because the tree had changed meanwhile, and that all steps were undone.
	Finished, TakenBack bool
	// Stays are the paths whose new entries were not undone, since others have changed them.
	Stays []string
	// Kept are the new paths of the host's own entries that could not go back.
	Kept []string
}

// ErrForeign says that a journal is of another user. Only that user can end its apply.
var ErrForeign = errors.New("is not a journal of your user; remove it if no other user needs it")

// ErrUntold is the error that a tell of Recover returns for an unknown source.
var ErrUntold = errors.New("an apply of another sandbox was not told")

// Recover ends the applies to the tree that were killed. It does the steps of an apply that
// are left. If one of them fails, Recover undoes all steps.
//
// Recover calls tell with the source and the stamps of each finished apply, for storage. The
// stamp of a removed path is zero. If tell fails, the next Recover calls it again with these
// stamps. Recover returns the error of tell, except ErrUntold. tell can be nil.
//
// A sandbox's view of a tree also shows the journals of applies to the host's tree. Recover does not touch them
// if view is set, as in Options.
//
// Errors: ErrBusy while another apply to the tree goes on; ErrForeign after the end of all
// applies that are not foreign.
func Recover(target *os.File, view bool, tell func(source string, stamps map[string]layer.Stamp) error) (Recovery, error) {
	var all Recovery
	names, err := journals(target)
	if err != nil {
		return all, fmt.Errorf("recover %s: %w", target.Name(), err)
	}
	var foreign error // only the first, since other users can make any number of journals
	for _, name := range names {
		err := all.recoverOne(target, name, view, tell)
		for try := 0; errors.Is(err, ErrBusy) && try < patience; try++ {
			time.Sleep(5 * time.Millisecond)
			err = all.recoverOne(target, name, view, tell)
		}
		if missing(err) || errors.Is(err, ErrUntold) || view && errors.Is(err, ErrForeign) {
			continue // another process has ended the apply, or will end it
		}
		if errors.Is(err, ErrForeign) {
			if foreign == nil {
				foreign = fmt.Errorf("recover %s: %w", target.Name(), err)
			}
			continue
		}
		if err != nil {
			return all, fmt.Errorf("recover %s: %w", target.Name(), naming(err, all.Kept))
		}
	}
	return all, naming(foreign, all.Kept)
}

// recoverOne ends the apply of one journal.
func (all *Recovery) recoverOne(target *os.File, name string, view bool, tell func(string, map[string]layer.Stamp) error) error {
	e, err := statAt(int(target.Fd()), name)
	if err != nil {
		return &pathError{name, err}
	}
	if !e.dir() || e.mount || !isOwnEntry(e) {
		return fmt.Errorf("%q %w", name, ErrForeign)
	}
	j, err := lockJournal(target, name, view)
	if err != nil {
		return err
	}
	defer j.dir.Close()
	if err := j.checkOwner(); err != nil {
		return err
	}
	t, staged := newTree(target), newTree(j.dir)
	defer t.forget()
	defer staged.forget()
	record, err := j.read(recordFile)
	if err != nil {
		return err
	}
	if record == nil {
		if record, err = j.read(doneFile); err != nil {
			return err
		}
		return j.tellDone(record, t, tell)
	}
	r, err := j.run(&run{tree: t, staged: staged}, record)
	all.Stays = append(all.Stays, r.stays...)
	all.Kept = append(all.Kept, r.kept...)
	if r.restored { // err is the reason, and no error of the recovery
		all.TakenBack = true
		return nil
	}
	if err != nil {
		return err
	}
	all.Finished = true
	return j.tellDone(record, t, tell)
}

// tellDone calls tell with the stamps of an apply whose steps are all done, and removes the
// journal. A nil record means that the apply has changed nothing. The replaced entries must
// be removed before the stamps are read: the removal changes the ctime of a file that has
// another name in the tree. A nil tell wants no stamps.
func (j *journal) tellDone(r *record, t *tree, tell func(string, map[string]layer.Stamp) error) error {
	if r == nil || r.Source == "" || tell == nil {
		return errors.Join(j.sync(j.dir), j.discard())
	}
	if err := j.clear(); err != nil {
		return err
	}
	t.forget()
	stamps, err := r.stamps(t)
	if err != nil {
		return err
	}
	if err := tell(r.Source, stamps); err != nil {
		return err
	}
	return j.discard()
}

// stamps returns the stamps of the entries that the steps have left in the tree, by path. It
// leaves out new entries that others have changed since they were staged.
func (r *record) stamps(t *tree) (map[string]layer.Stamp, error) {
	stamps := map[string]layer.Stamp{}
	for _, k := range r.Kin {
		if e, err := t.stat(k.Path); err == nil && e.Ino == k.Ino && e.MTime == k.MTime {
			stamps[k.Path] = stampOf(e, 0)
		}
	}
	for i := range r.Ops {
		o := &r.Ops[i]
		if !o.makesEntry() {
			if o.Kind != opAttributes {
				stamps[o.Path] = layer.Stamp{}
			}
			continue
		}
		e, err := t.stat(o.Path)
		if missing(err) || noDirectory(err) || err == nil && !o.isMade(e) {
			continue
		}
		if err != nil {
			return nil, err
		}
		stamps[o.Path] = stampOf(e, 0)
		if !e.dir() {
			continue
		}
		err = t.walk(o.Path, func(at string, e entry) error {
			if e.unchangedSince(r.Begun) {
				stamps[at] = stampOf(e, 0)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return stamps, nil
}
