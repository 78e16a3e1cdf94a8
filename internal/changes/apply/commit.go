package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
)

// Commit applies the plan, whole or not at all. It returns once the new entries are
// durable, without [Options.View]. The replaced entries are removed in the background. After the first change of
// the tree the end of the context has no effect. A Commit that ends a killed apply changes
// nothing itself, and returns an error. The caller stores the stamps of the
// report and calls Close. If the stamps cannot be stored, the caller calls Leave.
func (p *Plan) Commit(ctx context.Context) (Report, error) {
	if len(p.conflicts) > 0 && !p.o.Overwrite {
		return Report{}, p.wrapError(&ConflictError{Conflicts: p.conflicts})
	}
	if err := p.endEarlier(); err != nil {
		return Report{}, err
	}
	j, err := beginJournal(p.target, p.o.View)
	if err != nil {
		return Report{}, p.wrapError(err)
	}
	report := Report{Stamps: make(map[string]layer.Stamp, len(p.changes))}
	defer p.tree.forget()
	if err := p.commit(ctx, j, report.Stamps); err != nil {
		j.dir.Close()
		return Report{}, p.wrapError(err)
	}
	p.cleaned = make(chan error, 1)
	p.journal = j
	clean := func() { p.cleaned <- j.clear() }
	if len(p.kin) > 0 {
		clean() // which changes the ctimes that are reported
	} else {
		go clean()
	}
	p.report(ctx, &report)
	p.steps.items, p.steps.ops = nil, nil // the plan has been carried out
	return report, nil
}

// ErrUnfinished says that a Commit was neither done nor taken back. The next recovery of the tree does one of them.
var ErrUnfinished = errors.New("the apply has not ended")

// endEarlier ends killed applies. If there was one, the plan may be of a tree that was changed half-way.
func (p *Plan) endEarlier() error {
	leave := func(string, map[string]layer.Stamp) error { return ErrUntold } // another caller tells the stamps
	earlier, err := Recover(p.target, p.o.View, leave)
	if err == nil && (earlier.Finished || earlier.TakenBack) {
		err = naming(p.wrapError(errors.New("an earlier apply was killed; it is completed or taken back now, and this apply has changed nothing; try again")), earlier.Kept)
	}
	return err
}

// naming adds the kept files of the host to an error that does not name them.
func naming(err error, kept []string) error {
	if _, ok := errors.AsType[*ConflictError](err); ok || err == nil || len(kept) == 0 {
		return err
	}
	return fmt.Errorf("%w; files of the host that could not go back are kept as %q", err, kept)
}

// Close removes the record of a Commit and the replaced entries. A plan that was not
// committed needs no Close.
func (p *Plan) Close() error {
	return p.endJournal(func() error { return p.journal.discard() })
}

// Leave is Close without the removal of the record: the next Recover tells
// the stamps.
func (p *Plan) Leave() error {
	return p.endJournal(func() error { return p.journal.dir.Close() })
}

func (p *Plan) endJournal(journal func() error) error {
	if p.cleaned == nil {
		return nil
	}
	err := errors.Join(<-p.cleaned, journal())
	p.cleaned = nil
	if err != nil {
		return p.wrapError(fmt.Errorf("%w (the next apply to the tree goes on with it)", err))
	}
	return nil
}

func (p *Plan) wrapError(err error) error {
	return fmt.Errorf("apply to %s: %w", p.target.Name(), err)
}

// commit leaves the journal only on success, and where it could not restore
// the tree.
func (p *Plan) commit(ctx context.Context, j *journal, stamps map[string]layer.Stamp) error {
	if err := stage(ctx, p, j.dir, stamps); err != nil {
		return j.abandon(err)
	}
	if p.o.Verify != nil {
		if err := p.o.Verify(ctx); err != nil {
			return j.abandon(err)
		}
	}
	if p.o.Untie != nil {
		if err := p.o.Untie(ctx, slices.ContainsFunc(p.steps.ops, op.takesDirectory)); err != nil {
			return j.abandon(err)
		}
	}
	// The staged files are durable before the record says how to use them.
	if err := j.syncAll(); err != nil {
		return j.abandon(err)
	}
	awaitTick(ctx)
	record := &record{Version: recordVersion, Source: p.o.Source, Begun: time.Now().UnixNano(), Ops: p.steps.ops}
	for _, k := range p.kin {
		record.Kin = append(record.Kin, kin{k.path, k.entry.Ino, k.entry.MTime})
	}
	if err := j.write(record); err != nil {
		return j.abandon(err)
	}
	p.tree.forget()
	staged := newTree(j.dir)
	defer staged.forget()
	r, err := j.run(&run{tree: p.tree, staged: staged, first: true}, record)
	if err != nil && !r.restored {
		err = fmt.Errorf("%w: %w", ErrUnfinished, err)
	}
	return naming(err, r.kept)
}

// run carries a record out. If that cannot be done it restores the tree, and then
// removes the journal.
func (j *journal) run(r *run, record *record) (*run, error) {
	r.ops, r.begun = record.Ops, record.Begun
	if err := r.forward(); err != nil {
		return r, j.takeBack(r, err)
	}
	if err := j.syncAll(); err != nil {
		return r, err
	}
	return r, j.done()
}

// takeBack restores the tree after a step has failed.
func (j *journal) takeBack(r *run, why error) error {
	r.tree.forget()
	back := r.backward()
	if conflict, ok := errors.AsType[*ConflictError](why); ok {
		conflict.Applied, conflict.Kept = r.stays, r.kept
	}
	if back != nil {
		return fmt.Errorf("%w; restoring the tree: %w (the next apply to the tree tries again; the replaced files are in %s)", why, back, j.name)
	}
	r.staged.forget()
	if back := j.undone(); back != nil {
		return errors.Join(why, back)
	}
	r.restored = true
	return errors.Join(why, j.discard())
}
