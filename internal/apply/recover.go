package apply

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/layer"
)

// A Recovery tells how killed applies ended.
type Recovery struct {
	// Finished says that all steps of an apply were done. TakenBack says that the steps
	// of an apply were undone, since the tree had changed meanwhile.
	Finished, TakenBack bool
	// Stays are the paths that stay applied: others have changed the new entries.
	Stays []string
	// Stamps are of the paths of finished applies, by their source. The stamp of a
	// removed path is zero.
	Stamps map[string]map[string]layer.Stamp
}

// ErrForeign says that only another user can end an apply.
var ErrForeign = errors.New("is not of an apply of yours; if it is nobody else's, remove it")

// Recover ends the applies to the tree that were killed. It does all steps of an apply,
// or undoes them if the tree has changed since.
//
// Errors: ErrBusy while another apply to the tree goes on; ErrForeign, once all others
// have been finished.
func Recover(target *os.File) (Recovery, error) {
	return recoverAll(target, false, nil)
}

// ErrUntold is the error of RecoverAndTell's tell for a source that it does not know.
var ErrUntold = errors.New("an apply of another sandbox was not told")

// RecoverAndTell is Recover that has tell store the stamps of each finished apply. After an
// error of tell the next call tells them again; ErrUntold is no error of RecoverAndTell.
// Recovery.Stamps stays empty.
func RecoverAndTell(target *os.File, tell func(source string, stamps map[string]layer.Stamp) error) (Recovery, error) {
	return recoverAll(target, false, tell)
}

// RecoverView is Recover in the view that a sandbox has of a tree. The view also shows
// the staging directories of applies to the host's tree. RecoverView leaves these alone.
func RecoverView(target *os.File) (Recovery, error) {
	return recoverAll(target, true, nil)
}

func recoverAll(target *os.File, view bool, tell func(string, map[string]layer.Stamp) error) (Recovery, error) {
	all := Recovery{Stamps: map[string]map[string]layer.Stamp{}}
	if tell == nil {
		tell = all.keep
	}
	names, err := journals(target)
	if err != nil {
		return all, fmt.Errorf("recover %s: %w", target.Name(), err)
	}
	var foreign error // the first one: others can make any number
	for _, name := range names {
		err := all.one(target, name, tell)
		for try := 0; errors.Is(err, ErrBusy) && try < patience; try++ {
			time.Sleep(5 * time.Millisecond)
			err = all.one(target, name, tell)
		}
		if missing(err) || errors.Is(err, ErrUntold) || view && errors.Is(err, ErrForeign) {
			continue // another process has, or will
		}
		if errors.Is(err, ErrForeign) {
			if foreign == nil {
				foreign = fmt.Errorf("recover %s: %w", target.Name(), err)
			}
			continue
		}
		if err != nil {
			return all, fmt.Errorf("recover %s: %w", target.Name(), err)
		}
	}
	return all, foreign
}

func (all *Recovery) one(target *os.File, name string, tell func(string, map[string]layer.Stamp) error) error {
	e, err := statAt(int(target.Fd()), name)
	if err != nil {
		return &pathError{name, err}
	}
	if !e.dir() || e.mount || !isOwn(e) {
		return fmt.Errorf("%q %w", name, ErrForeign)
	}
	j, err := lockJournal(target, name)
	if err != nil {
		return err
	}
	defer j.dir.Close()
	if err := j.own(); err != nil {
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
	restored, err := j.run(t, staged, record)
	if restored {
		all.TakenBack = true
		if conflict, ok := errors.AsType[*ConflictError](err); ok {
			all.Stays = append(all.Stays, conflict.Applied...)
		}
		return nil
	}
	if err != nil {
		return err
	}
	all.Finished = true
	return j.tellDone(record, t, tell)
}

// tellDone tells the stamps of an apply whose steps are all done, and removes the journal.
// A nil record is of an apply that has changed nothing. The replaced entries are removed
// first, since their removal changes the ctimes of files that have other names in the tree.
func (j *journal) tellDone(r *record, t *tree, tell func(string, map[string]layer.Stamp) error) error {
	if r == nil || r.Source == "" {
		return errors.Join(j.sync(), j.discard())
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

// keep notes stamps in Stamps.
func (all *Recovery) keep(source string, stamps map[string]layer.Stamp) error {
	if all.Stamps[source] == nil {
		all.Stamps[source] = map[string]layer.Stamp{}
	}
	maps.Copy(all.Stamps[source], stamps)
	return nil
}

// stamps are of the entries that the steps have left in the tree. New entries have none
// if others have changed them since they were staged.
func (r *record) stamps(t *tree) (map[string]layer.Stamp, error) {
	stamps := map[string]layer.Stamp{}
	for _, k := range r.Kin {
		if e, err := t.stat(k.Path); err == nil && e.Ino == k.Ino && e.MTime == k.MTime {
			stamps[k.Path] = stampOf(e)
		}
	}
	for i := range r.Ops {
		o := &r.Ops[i]
		if !o.makes() {
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
		stamps[o.Path] = stampOf(e)
		if !e.dir() {
			continue
		}
		err = t.walk(o.Path, func(at string, e entry) error {
			if e.unchangedSince(r.Begun) {
				stamps[at] = stampOf(e)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return stamps, nil
}
