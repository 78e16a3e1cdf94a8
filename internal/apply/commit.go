package apply

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/layer"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Commit applies the plan, whole or not at all. It returns once that is durable;
// what was replaced is removed meanwhile, and Close waits for it. A context that
// ends stops it only as long as nothing of the tree has been changed.
func (p *Plan) Commit(ctx context.Context) (Report, error) {
	if len(p.conflicts) > 0 && !p.o.Overwrite {
		return Report{}, p.about(&ConflictError{Conflicts: p.conflicts})
	}
	if _, err := recoverAll(p.target, p.o.View); err != nil {
		return Report{}, err
	}
	j, err := begin(p.target)
	if err != nil {
		return Report{}, p.about(err)
	}
	report := Report{Stamps: make(map[string]layer.Stamp, len(p.changes))}
	defer p.tree.forget()
	if err := p.commit(ctx, j, report.Stamps); err != nil {
		return Report{}, p.about(err)
	}
	p.cleaned = make(chan error, 1)
	clean := func() { p.cleaned <- errors.Join(j.sync(), j.discard()) }
	if len(p.kin) > 0 {
		clean() // which changes the ctimes that are reported
	} else {
		go clean()
	}
	p.report(ctx, &report)
	p.items, p.ops = nil, nil // the plan has been carried out
	return report, nil
}

// Close waits until what Commit has replaced is removed. A plan that was not
// committed needs none.
func (p *Plan) Close() error {
	if p.cleaned == nil {
		return nil
	}
	err := <-p.cleaned
	p.cleaned = nil
	if err != nil {
		return p.about(fmt.Errorf("%w (the next apply to the tree goes on with it)", err))
	}
	return nil
}

func (p *Plan) about(err error) error {
	return fmt.Errorf("apply to %s: %w", p.target.Name(), err)
}

// commit leaves the journal only on success, and where it could not restore
// the tree.
func (p *Plan) commit(ctx context.Context, j *journal, stamps map[string]layer.Stamp) error {
	staged := newTree(j.dir)
	defer staged.forget()
	if err := p.stage(ctx, staged, stamps); err != nil {
		staged.forget()
		return j.abandon(err)
	}
	if p.o.Verify != nil {
		if err := p.o.Verify(ctx); err != nil {
			return j.abandon(err)
		}
	}
	// What is staged is durable before the record says what to do with it.
	if err := unix.Syncfs(int(j.dir.Fd())); err != nil {
		return j.abandon(fmt.Errorf("sync: %w", err))
	}
	awaitTick(ctx)
	record := &record{Version: recordVersion, Source: p.o.Source, Begun: time.Now().UnixNano(), Ops: p.ops}
	if err := j.write(record); err != nil {
		return j.abandon(err)
	}
	p.tree.forget()
	_, err := j.run(p.tree, staged, record)
	return err
}

// run carries a record out. If that cannot be done it restores the tree, and then
// removes the journal.
func (j *journal) run(t, staged *tree, record *record) (restored bool, err error) {
	r := &run{tree: t, staged: staged, ops: record.Ops, begun: record.Begun}
	if err := r.forward(); err != nil {
		return j.takeBack(r, err)
	}
	if err := unix.Syncfs(int(j.dir.Fd())); err != nil {
		j.dir.Close()
		return false, fmt.Errorf("sync: %w", err)
	}
	if err := j.done(); err != nil {
		j.dir.Close()
		return false, err
	}
	return false, nil
}

// takeBack restores the tree after a step has failed.
func (j *journal) takeBack(r *run, why error) (restored bool, err error) {
	r.tree.forget()
	if back := r.backward(); back != nil {
		j.dir.Close()
		return false, fmt.Errorf("%w; restoring the tree: %w (the next apply to the tree tries again; what was there is in %s)",
			why, back, j.name)
	}
	r.staged.forget()
	if back := j.undone(); back != nil {
		j.dir.Close()
		return false, errors.Join(why, back)
	}
	var conflict *ConflictError
	if len(r.stays) > 0 && errors.As(why, &conflict) {
		conflict.Applied = r.stays
		why = conflict
	}
	return true, errors.Join(why, j.discard())
}

// stage makes all that is new, and notes ctimes.
func (p *Plan) stage(ctx context.Context, staged *tree, stamps map[string]layer.Stamp) error {
	m := newMaker(staged)
	var linked []int
	for i := range p.items {
		if err := ctx.Err(); err != nil {
			return err
		}
		it := &p.items[i]
		e, err := p.stageOne(m, it)
		if err != nil {
			return about(it.path(), err)
		}
		if it.first >= 0 {
			linked = append(linked, int(it.first), i)
		}
		p.note(it, e, stamps)
	}
	// Each link changes the ctime of the file.
	for _, i := range linked {
		e, err := staged.stat(p.at(&p.items[i]))
		if err != nil {
			return err
		}
		p.note(&p.items[i], e, stamps)
	}
	for i := len(p.items) - 1; i >= 0; i-- {
		it := &p.items[i]
		if !it.dir() {
			continue
		}
		n := it.node()
		e, err := m.finish(p.at(it), &n)
		if err != nil {
			return about(it.path(), err)
		}
		p.note(it, e, stamps)
	}
	return nil
}

func (p *Plan) note(it *item, e entry, stamps map[string]layer.Stamp) {
	if it.copied != nil {
		return
	}
	stamps[it.path()] = it.stamp(e)
	if !it.inside {
		p.ops[it.op].Ino = p.inode(e)
		p.ops[it.op].Made = e.identity
	}
}

func (p *Plan) stageOne(m *maker, it *item) (entry, error) {
	if it.first >= 0 {
		return m.link(p.at(&p.items[it.first]), p.at(it))
	}
	n := it.node()
	e, err := m.make(p.at(it), &n, func() (int, error) { return p.stack.OpenListed(it.path()) })
	if n.kind == spec.TypeFile && it.copied == nil {
		it.source = m.copy.source
	}
	return e, err
}

// link makes another name of a file.
func (m *maker) link(from, to string) (entry, error) {
	fromDir, fromName, err := m.tree.parent(from)
	if err != nil {
		return entry{}, err
	}
	// Looking up the other directory may close this one.
	fromDir, err = unix.FcntlInt(uintptr(fromDir), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return entry{}, err
	}
	defer unix.Close(fromDir)
	dir, name, err := m.tree.parent(to)
	if err != nil {
		return entry{}, err
	}
	if err := unix.Linkat(fromDir, fromName, dir, name, 0); err != nil {
		return entry{}, err
	}
	return statAt(dir, name)
}
