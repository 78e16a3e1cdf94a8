package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/apply"
	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/mountns"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// maxUndo is how many transactions can be undone: their replaced files take room in the
// store.
const maxUndo = 16

// A conflictError says that files were changed by others while a transaction ran,
// or since it has joined.
type conflictError struct{ paths []string }

func (e *conflictError) Error() string {
	const most = 5
	var names []string
	for _, name := range e.paths[:min(most, len(e.paths))] {
		names = append(names, streams.Visible(name))
	}
	text := strings.Join(names, ", ")
	if more := len(e.paths) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return "changed meanwhile by others: " + text
}

// A work is a transaction's directory on the way into the sandbox's files, or one
// that is undone.
type work struct {
	keeper *Keeper

	record record.Record
	store  *os.File
	number int
	dir    *os.File
	Journal
	// inPart says that a join has failed, and was not taken back. The next resume ends it.
	inPart bool
	// notes are for the Result.
	notes []string
}

// A step is the work at one place.
type step struct {
	place  int
	plan   *apply.Plan
	layer  *os.File
	target target
}

func (s *step) close() error {
	err := s.plan.Close()
	s.layer.Close()
	s.target.close()
	return err
}

// A target is a directory to which layers are applied. For a directory of the host, dir is
// that directory, with the ids on disk, and shown is the sandbox's view of it.
type target struct{ dir, shown *os.File }

func (t target) close() {
	if t.shown != t.dir {
		t.shown.Close()
	}
	t.dir.Close()
}

// Settle has a transaction join, if its command has succeeded, or vanish. Nil is that of a
// command without a transaction. alone calls its function while no other process changes the
// sandbox.
func (t *Transaction) Settle(ctx context.Context, r *spec.Result, alone func(func() error) error) error {
	if t == nil {
		return nil
	}
	var whole error
	if r.OK() {
		whole = t.makeWhole(ctx)
	}
	t.leave()
	if !r.OK() {
		r.Reason += "; the transaction has dropped all that it wrote"
		return t.Drop()
	}
	w := &work{keeper: t.files.keeper, store: t.store, number: t.number, dir: t.dir, Journal: t.Journal}
	err := whole
	if err == nil {
		// Another process can hold the sandbox.
		err = retry(joinPatience, statedir.ErrHeld, func() error {
			return alone(func() error { return t.settle(ctx, w) })
		})
	}
	r.Notes = append(r.Notes, w.notes...)
	if err != nil {
		r.Status = spec.StatusError
		r.Reason = fmt.Sprintf("the command succeeded, but nothing that it wrote has joined the sandbox's files: %v", err)
	}
	if w.inPart {
		r.Reason = fmt.Sprintf("the command succeeded, but perhaps only a part of what it wrote has joined the sandbox's files; all processes of the sandbox stand still until its next command, which first adds the rest, or takes this part back: %v", err)
	}
	if err != nil && !w.inPart {
		return t.Drop()
	}
	t.dir.Close()
	t.dir = nil // it stays, to be undone or taken back
	return t.Drop()
}

// joinPatience is how long a transaction waits for its turn to join: other transactions can join
// before.
const joinPatience = 10 * time.Minute

// retry calls f again while its error is busy, until the time of patience is over.
func retry(patience time.Duration, busy error, f func() error) error {
	for end := time.Now().Add(patience); ; {
		err := f()
		if !errors.Is(err, busy) || time.Now().After(end) {
			return err
		}
	}
}

// settle is the join of a transaction. The caller must hold the sandbox.
func (t *Transaction) settle(ctx context.Context, w *work) error {
	v := t.files
	return inTurn(ctx, t.store, func() error {
		if !v.Up() || !v.Present() {
			return v.Why(ctx, &fault.SandboxError{ID: v.ID, Err: fault.ErrNotRunning})
		}
		note, err := v.whileStill(func() (ended bool, err error) {
			w.record = v.Current()
			if err = v.keeper.resumeIn(ctx, w.record, t.store); err == nil {
				err = w.join(ctx)
			}
			return !w.inPart, err
		})
		if note != nil {
			w.addNote(note)
		}
		if err != nil {
			return err
		}
		if err := v.keeper.trimUndo(t.store); err != nil {
			w.notes = append(w.notes, "the oldest transaction could not be removed: "+err.Error())
		}
		return nil
	})
}

// addNote adds a note of [Files.whileStill].
func (w *work) addNote(note error) {
	text := note.Error()
	if errors.Is(note, errNoFreezer) {
		text += ": other processes of the sandbox ran while the writes of the transaction joined, and may have seen a part of them"
	}
	w.notes = append(w.notes, text)
}

// join applies the layers to the sandbox's files, all of them or none.
func (w *work) join(ctx context.Context) error {
	steps, err := w.plan(ctx, "data", apply.Options{Since: w.Since})
	defer closeSteps(steps)
	if err != nil {
		return err
	}
	before := map[string]layer.Stamp{}
	for _, s := range steps {
		times, err := w.save(s)
		if err != nil {
			return err
		}
		for name, ctime := range times {
			before[w.stampKey(s.place, name)] = layer.Stamp{Source: ctime}
		}
	}
	if w.Joined, err = record.Settled(ctx); err != nil {
		return err
	}
	if err := writeStamps(w.dir, stampsName, before); err != nil {
		return err
	}
	w.State = TxJoins
	if err := w.Write(w.dir); err != nil {
		return err
	}
	err = w.carryOut(ctx, steps)
	switch {
	case errors.Is(err, apply.ErrUnfinished):
		w.inPart = true
	case err != nil:
		back := w.takeBack(ctx, steps)
		w.inPart = back != nil
		err = errors.Join(err, back)
	default:
		err = w.joined(ctx)
		w.inPart = err != nil
	}
	return err
}

// takeBack undoes the part of a join that was done before it failed.
func (w *work) takeBack(ctx context.Context, steps []*step) error {
	if w.Done == 0 {
		return nil
	}
	begun, err := record.Settled(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	w.State, w.Until, w.Done, w.Undoing = txUndoing, w.Done, 0, &span{From: begun, Paths: w.touched(steps)}
	if err := w.Write(w.dir); err != nil {
		return err
	}
	if err := w.finish(ctx, "undo", w.Joined); err != nil {
		return err
	}
	return w.tellOthers(ctx)
}

// joined keeps the layers that undo the transaction, and nothing else of it.
func (w *work) joined(ctx context.Context) error {
	w.State, w.Done = txJoined, 0
	end, err := record.Settled(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	w.Ours = append(w.Ours, span{From: w.Joined, To: end})
	if err := w.Write(w.dir); err != nil {
		return err
	}
	for i := range w.Places {
		place := fmt.Sprintf("tx/%d/%d/", w.number, i)
		if err := errors.Join(w.keeper.DiscardIn(w.store, place+"data"), w.keeper.DiscardIn(w.store, place+"work")); err != nil {
			w.notes = append(w.notes, "a layer of the transaction stays in the store: "+err.Error())
		}
	}
	return nil
}

// save writes the layer that undoes a step. It returns the change times of the saved files.
func (w *work) save(s *step) (times map[string]int64, err error) {
	place, err := descriptor.OpenDir(w.dir, strconv.Itoa(s.place))
	if err != nil {
		return nil, err
	}
	defer place.Close()
	if err := erase.Entry(context.Background(), place, "undo"); err != nil {
		return nil, err
	}
	undo, err := makeDir(place, "undo")
	if err != nil {
		return nil, err
	}
	defer undo.Close()
	plan := s.plan
	if s.target.shown != s.target.dir { // with the ids that the sandbox sees, which are those of the store
		if plan, err = planOf(s.layer, s.target.shown, apply.Options{Setuid: true, Devices: true, Overwrite: true}); err != nil {
			return nil, err
		}
	}
	return plan.Save(undo)
}

// carryOut does the steps. Each is complete before it is counted, in a writable bind also durable.
// If one fails, the others stay done, and the next process goes on.
func (w *work) carryOut(ctx context.Context, steps []*step) error {
	for _, s := range steps {
		report, err := s.plan.Commit(context.WithoutCancel(ctx))
		if err == nil {
			w.Done = s.place + 1
			_ = w.note(s.place, report.Stamps) // if this fails, undo reports these files as conflicts
			err = s.plan.Close()               // nothing of it is left there, once it counts
		}
		if err != nil {
			return fmt.Errorf("%s: %w", w.Places[s.place].Path, err)
		}
		if err := w.Write(w.dir); err != nil {
			return err
		}
	}
	return nil
}

// plan plans the apply of one layer of each place, from the first that is not done.
func (w *work) plan(ctx context.Context, name string, o apply.Options) (steps []*step, err error) {
	var conflicts []string
	targets, err := w.targets()
	defer func() {
		for _, t := range targets {
			t.close()
		}
	}()
	if err != nil {
		return nil, err
	}
	end := len(w.Places)
	if w.Until > 0 {
		end = w.Until
	}
	for i := w.Done; i < end; i++ {
		p := w.Places[i]
		if p.Same != "" || !w.hasLayer(i, name) {
			continue
		}
		s, err := w.step(i, name, targets[i], o)
		if err != nil {
			return steps, fmt.Errorf("%s: %w", p.Path, err)
		}
		targets[i] = target{}
		if s == nil {
			continue
		}
		if len(s.plan.Changes()) == 0 {
			if err := s.close(); err != nil {
				return steps, err
			}
			continue
		}
		steps = append(steps, s)
		for _, c := range s.plan.Conflicts() {
			conflicts = append(conflicts, p.Path+"/"+c.Path)
		}
		if err := ctx.Err(); err != nil {
			return steps, err
		}
	}
	if len(conflicts) > 0 && !o.Overwrite {
		return steps, &conflictError{conflicts}
	}
	return steps, nil
}

// hasLayer says whether there is such a layer of a place: nothing has to be undone where
// nothing was changed.
func (w *work) hasLayer(i int, name string) bool {
	var st unix.Stat_t
	return unix.Fstatat(int(w.dir.Fd()), strconv.Itoa(i)+"/"+name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil
}

// step plans the work at one place. It takes over the target. It returns nil if a killed process has carried the work
// out.
func (w *work) step(i int, name string, to target, o apply.Options) (*step, error) {
	host := w.Places[i].Host
	o.View = host == ""
	o.Source = w.source(i)
	finished := false
	earlier, err := apply.Recover(to.dir, o.View, func(source string, stamps map[string]layer.Stamp) error {
		if source != o.Source {
			return apply.ErrUntold
		}
		finished = true
		_ = w.note(i, stamps) // as in carryOut
		return nil
	})
	if err == nil && len(earlier.Kept) > 0 {
		err = fmt.Errorf("an earlier apply was killed and is taken back now; files that could not go back are kept as %q; try again", earlier.Kept)
	}
	if err != nil {
		return nil, err
	}
	if finished { // another plan would overwrite later changes of others
		to.close()
		w.Done = i + 1
		return nil, w.Write(w.dir)
	}
	dir, err := descriptor.OpenDir(w.dir, strconv.Itoa(i)+"/"+name)
	if err != nil {
		return nil, err
	}
	o.Setuid, o.Devices = true, true
	o.Owners = func(c spec.Change) apply.Owner { return apply.Owner{UID: c.UID, GID: c.GID} }
	if host != "" {
		owner, err := ownerOf(to.dir)
		if err != nil {
			dir.Close()
			return nil, err
		}
		o.Setuid, o.Devices = false, false
		o.Owners = func(spec.Change) apply.Owner { return owner }
	}
	plan, err := planOf(dir, to.dir, o)
	if err == nil && name == "undo" && len(plan.Conflicts()) > 0 {
		if o.Stamps, err = w.stamps(i, to.dir, plan.Conflicts()); err == nil {
			plan, err = planOf(dir, to.dir, o)
		}
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return &step{place: i, plan: plan, layer: dir, target: to}, nil
}

func planOf(dir, target *os.File, o apply.Options) (*apply.Plan, error) {
	return apply.New(&layer.Stack{Layers: []layer.Layer{{Dir: dir}}, Base: target}, target, o)
}

func ownerOf(dir *os.File) (apply.Owner, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return apply.Owner{}, fmt.Errorf("stat %s: %w", dir.Name(), err)
	}
	return apply.Owner{UID: st.Uid, GID: st.Gid}, nil
}

// targets opens the directories of the places for reading. The caller must close them, also after an error.
func (w *work) targets() (all []target, err error) {
	thread, err := mountns.Enter(w.record.Init)
	if err != nil {
		return nil, err
	}
	defer thread.Stop()
	all = make([]target, len(w.Places))
	err = thread.Do(func() error {
		for i, p := range w.Places {
			f, err := mountns.OpenInside(p.Path, unix.O_RDONLY|unix.O_DIRECTORY)
			if err != nil {
				return err
			}
			all[i] = target{f, f}
		}
		return nil
	})
	for i, p := range w.Places {
		if err == nil && p.Host != "" {
			all[i].dir, err = onHost(all[i].shown, p.Host)
		}
	}
	return all, err
}

// onHost opens the directory of the host's that a sandbox shows.
func onHost(shown *os.File, path string) (*os.File, error) {
	f, err := descriptor.OpenFile(unix.AT_FDCWD, path, descriptor.NoMagicLinks, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	var inside, here unix.Stat_t
	err = errors.Join(unix.Fstat(int(shown.Fd()), &inside), unix.Fstat(int(f.Fd()), &here))
	if err == nil && (inside.Dev != here.Dev || inside.Ino != here.Ino) {
		err = fmt.Errorf("%s is another directory than the one that the sandbox has", path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func closeSteps(steps []*step) {
	for _, s := range steps {
		_ = s.close() // the next apply there goes on with the rest
	}
}
