package apply

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/layer"
)

// A Recovery tells what became of applies that were killed.
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
	return recoverAll(target, false)
}

// RecoverView is Recover in the view that a sandbox has of a tree. The view also shows
// the staging directories of applies to the host's tree. RecoverView leaves these alone.
func RecoverView(target *os.File) (Recovery, error) {
	return recoverAll(target, true)
}

func recoverAll(target *os.File, view bool) (Recovery, error) {
	all := Recovery{Stamps: map[string]map[string]layer.Stamp{}}
	names, err := journals(target)
	if err != nil {
		return all, fmt.Errorf("recover %s: %w", target.Name(), err)
	}
	var foreign error // the first one: others can make any number
	for _, name := range names {
		err := all.one(target, name)
		for try := 0; errors.Is(err, ErrBusy) && try < patience; try++ {
			time.Sleep(5 * time.Millisecond)
			err = all.one(target, name)
		}
		if missing(err) || view && errors.Is(err, ErrForeign) {
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

func (all *Recovery) one(target *os.File, name string) error {
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
	if err := j.own(); err != nil {
		j.dir.Close()
		return err
	}
	t, staged := newTree(target), newTree(j.dir)
	defer t.forget()
	defer staged.forget()
	record, err := j.read(recordFile)
	if err != nil {
		j.dir.Close()
		return err
	}
	if record == nil {
		return errors.Join(all.done(j, t), j.discard())
	}
	restored, err := j.run(t, staged, record)
	if restored {
		all.TakenBack = true
		var conflict *ConflictError
		if errors.As(err, &conflict) {
			all.Stays = append(all.Stays, conflict.Applied...)
		}
		return nil
	}
	if err != nil {
		return err
	}
	all.Finished = true
	return errors.Join(all.note(record, t), j.sync(), j.discard())
}

// done notes the stamps of an apply that was killed after its last step.
func (all *Recovery) done(j *journal, t *tree) error {
	record, err := j.read(doneFile)
	if err != nil || record == nil {
		return err
	}
	return all.note(record, t)
}

func (all *Recovery) note(r *record, t *tree) error {
	if r.Source == "" {
		return nil
	}
	stamps, err := r.stamps(t)
	if err != nil {
		return err
	}
	if all.Stamps[r.Source] == nil {
		all.Stamps[r.Source] = map[string]layer.Stamp{}
	}
	maps.Copy(all.Stamps[r.Source], stamps)
	return nil
}

// stamps are of the entries that the steps have left in the tree. New entries have none
// if others have changed them since they were staged.
func (r *record) stamps(t *tree) (map[string]layer.Stamp, error) {
	stamps := map[string]layer.Stamp{}
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
