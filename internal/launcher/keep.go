package launcher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/overlay"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/draft"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
)

// replace makes a sandbox in place of an unhealthy sandbox of the same name. It has the held directory of
// that sandbox, so nobody else can take the name in between.
func (m *creation) replace(ctx context.Context) (*Sandbox, error) {
	l, id, state := m.launcher, m.ID, m.state
	note, err := l.keepFiles(ctx, id, state)
	if err == nil {
		err = l.networks().KeepLevelOf(id)
	}
	if err == nil {
		err = l.clearHeld(ctx, id, state)
	}
	if err == nil {
		err = state.Renew()
	}
	if note != "" {
		m.Notes = []string{note}
	}
	var s *Sandbox
	if err != nil {
		state.Release()
	} else {
		s, err = m.create(ctx)
	}
	if err != nil && note != "" {
		return nil, fmt.Errorf("%w; %s", err, note)
	}
	return s, err
}

// keepFiles keeps the files of a sandbox that "up" is about to replace, as a snapshot.
// The note tells the user of the new sandbox about the old files. The caller holds the
// sandbox. A second call after a crash finds the snapshot of the first.
func (l *Launcher) keepFiles(ctx context.Context, id string, state *statedir.Dir) (note string, err error) {
	if statedir.RemovalBegun(state.Path) {
		return "", nil
	}
	r, err := record.Read(state.Path)
	if errors.Is(err, fs.ErrNotExist) { // the sandbox was never up
		return "", nil
	}
	if record.IsUnknown(err) {
		return "", err
	}
	if err != nil {
		return fmt.Sprintf("the record of the sandbox %s before this one cannot be read, and its files are lost: %v", id, err), nil
	}
	if !r.Backend(l.Roots).Durable() {
		return fmt.Sprintf("the sandbox %s before this one had stopped; its writes were in memory and are lost", id), nil
	}
	w, err := workOf(l.Roots, r)
	if err == nil && w.some && (r.Kept == "" || !hasSnapshot(l.Roots, r.Kept)) {
		r, err = l.snapshotStopped(ctx, id, state, w)
	}
	if err != nil {
		return "", fmt.Errorf("keep the files of the stopped sandbox %s: %w; apply or save its changes, or throw them away with down", id, err)
	}
	if r.Kept == "" {
		return "", nil
	}
	note = fmt.Sprintf("the sandbox %s before this one had stopped; its files are kept as snapshot %[2]s (up --from %[2]s NAME begins with them, snapshot --remove %[2]s removes them)",
		id, r.Kept)
	if w.partial {
		note += "; a transaction had joined them only in part"
	}
	return note, nil
}

func hasSnapshot(roots record.Roots, name string) bool {
	return statedir.Exists(roots.SnapshotDir(name))
}

// snapshotStopped makes the snapshot, and returns the record with the snapshot's name.
// The name is in the record first: the record is the intent.
func (l *Launcher) snapshotStopped(ctx context.Context, id string, state *statedir.Dir, w unappliedFiles) (record.Record, error) {
	r := w.record
	if r.UID != 0 {
		if err := l.roomForSnapshot(ctx, r.UID); err != nil {
			return r, err
		}
	}
	owner, err := l.self()
	if err != nil {
		return r, err
	}
	r.Kept = nameForStopped(l.Roots, id, time.Now().UTC())
	if err := r.Write(state.Path); err != nil {
		return r, err
	}
	now := w.made
	now.Kept = r.Kept
	now.Switch = &record.Switch{Snapshot: r.Kept, Draft: "." + overlay.DraftName(owner), Done: true, Renamed: untieStopped(ctx, l.Roots, now)}
	if err := l.layers.DraftSnapshot(now); err != nil {
		return r, errors.Join(err, l.trash.Discard(l.layers.DraftOf(now)))
	}
	if err := l.layers.EndDraft(now); err != nil {
		return r, err
	}
	l.syncSnapshot(r.Kept)
	return r, nil
}

// untieStopped unties the renamed directories in the layers of a stopped sandbox. It tells whether there may be others left.
func untieStopped(ctx context.Context, roots record.Roots, r record.Record) bool {
	top, err := r.Backend(roots).Mount()
	if err != nil {
		return true
	}
	defer top.Close()
	left, err := overlay.UntieStopped(ctx, r, top)
	return left || err != nil
}

// nameForStopped returns a name for the snapshot of a stopped sandbox. No other snapshot has it.
func nameForStopped(roots record.Roots, id string, at time.Time) string {
	end := at.Format("-stopped-20060102-150405")
	for i := 2; ; i++ {
		name := id[:min(len(id), record.MaxName-len(end))] + end
		if !hasSnapshot(roots, name) {
			return name
		}
		end = fmt.Sprintf("%s-%d", at.Format("-stopped-20060102-150405"), i)
	}
}

// syncSnapshot brings a snapshot to disk in the background.
func (l *Launcher) syncSnapshot(name string) {
	l.tending.Go(func() {
		dir := l.SnapshotDir(name)
		files, _ := filepath.Glob(dir + "/*") // the pattern is good
		// After an error the kernel writes the files within half a minute anyway.
		_ = draft.Sync(append(files, dir, filepath.Dir(dir))...)
	})
}

// unappliedFiles describe the files of a stopped sandbox that nobody has applied or saved.
type unappliedFiles struct {
	// record is the record on disk. made is the record without the layers that do not exist yet.
	record, made record.Record
	// some says that files would be lost with the sandbox: its own files, or the files of a
	// removed snapshot.
	some bool
	// partial says that a transaction has joined only in part.
	partial bool
}

// workOf looks for files in a stopped sandbox's image. If it cannot mount the image, w.some is
// true.
func workOf(roots record.Roots, r record.Record) (w unappliedFiles, err error) {
	w = unappliedFiles{record: r, made: r}
	files := r.Backend(roots)
	if !files.Durable() {
		return w, nil
	}
	top, err := files.Mount()
	if errors.Is(err, fs.ErrNotExist) {
		return w, nil
	}
	w.some = true
	if err != nil {
		return w, nil
	}
	defer top.Close()
	partial, err := overlay.PartialIn(top)
	if err != nil {
		return w, err
	}
	w.partial = len(partial) > 0
	if w.made, err = r.WithoutUnmade(top); err != nil {
		return w, err
	}
	orphan := r.From != "" && !hasSnapshot(roots, r.From)
	for _, p := range w.made.Places() {
		for _, own := range w.made.Own(p) {
			if !isEmptyDir(top, own) {
				return w, nil
			}
		}
		if orphan && len(w.made.Stacks[p.Path].Below) > 0 {
			return w, nil
		}
	}
	w.some = false
	return w, nil
}

// isEmptyDir returns true for a missing directory, and false for an unreadable one.
func isEmptyDir(top *os.File, name string) bool {
	dir, err := descriptor.OpenDir(top, name)
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	if err != nil {
		return false
	}
	defer dir.Close()
	_, err = dir.Readdirnames(1)
	return errors.Is(err, io.EOF)
}

// Unapplied returns the ids of the stopped sandboxes that have files of their own on disk and are
// tied to no process. Prune keeps these sandboxes: their files can be applied or saved.
func (l *Launcher) Unapplied() ([]string, error) {
	ids, err := l.parts.Directories()
	var all []string
	for _, id := range ids {
		if may, err := l.mayPrune(id); err == nil && may && l.hasWork(id) {
			all = append(all, id)
		}
	}
	return all, err
}

// hasWork tells whether a stopped sandbox has files that only its owner may discard.
func (l *Launcher) hasWork(id string) bool {
	r, err := record.Read(l.Dir(id))
	if record.IsUnknown(err) {
		return true
	}
	if err != nil || r.Tied || statedir.RemovalBegun(l.Dir(id)) {
		return false
	}
	w, err := workOf(l.Roots, r)
	return w.some || err != nil
}
