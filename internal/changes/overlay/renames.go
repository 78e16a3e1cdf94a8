package overlay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/mountns"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs"
)

// A directory of the host that is renamed inside is not copied: the layer notes the place of the
// content on the host. All readers of layers need the content in the layer. So the launcher makes the
// directory whole before any of them reads (docs/adr/0028).

// A renamedPlace has the renamed directories of one place.
type renamedPlace struct {
	record.Place
	// layers are the sandbox's own, the uppermost first.
	layers []*os.File
	dirs   []layer.RenamedDir
	// merged is the mount at the place. find leaves it nil.
	merged *os.File
}

type renamedPlaces []*renamedPlace

func (all renamedPlaces) close() {
	for _, n := range all {
		descriptor.Close(append(n.layers, n.merged)...)
	}
}

// find looks for the renamed directories again. It keeps those that are wanted, and the places that have one. Directories
// that are too deep to be listed are left out.
func (all renamedPlaces) find(ctx context.Context, wanted func(layer.RenamedDir) bool) (some renamedPlaces, err error) {
	some, err = all.findAll(ctx, wanted)
	return some, unlessTooDeep(err)
}

// findAll is find for a caller that may overlook none: a directory that is too deep is an error.
func (all renamedPlaces) findAll(ctx context.Context, wanted func(layer.RenamedDir) bool) (some renamedPlaces, err error) {
	var tooDeep error
	for _, n := range all {
		if n.dirs, err = layer.FindRenamed(ctx, n.layers...); errors.Is(err, layer.ErrTooDeep) {
			tooDeep = fmt.Errorf("look for renamed directories in %s: %w; move it further up in the sandbox, or remove it", n.Path, err)
		} else if err != nil {
			return nil, fmt.Errorf("look for renamed directories in %s: %w", n.Path, err)
		}
		n.dirs = slices.DeleteFunc(n.dirs, func(d layer.RenamedDir) bool { return !wanted(d) })
		if len(n.dirs) > 0 {
			some = append(some, n)
		}
	}
	return some, tooDeep
}

// unlessTooDeep leaves out the error about a directory that is too deep to be listed.
func unlessTooDeep(err error) error {
	if errors.Is(err, layer.ErrTooDeep) {
		return nil
	}
	return err
}

func isPartial(d layer.RenamedDir) bool { return !d.Whole }

func isNotOpaque(d layer.RenamedDir) bool { return !d.Opaque }

// isTied tells whether the kernel may still look for the content of a whole directory in the layers below.
func isTied(d layer.RenamedDir) bool { return d.Whole && !d.Untied }

// openOwn opens the sandbox's own layers of all places that are overlays.
func openOwn(r record.Record, store *os.File) (all renamedPlaces, err error) {
	for _, p := range r.Places() {
		n := &renamedPlace{Place: p}
		for _, name := range r.Own(p) {
			if p.Same != "" || !strings.HasPrefix(name, "layer/") {
				continue
			}
			dir, err := descriptor.OpenDir(store, name)
			if err != nil {
				append(all, n).close()
				return nil, err
			}
			n.layers = append(n.layers, dir)
		}
		if len(n.layers) > 0 {
			all = append(all, n)
		}
	}
	return all, nil
}

// mounts opens the present mount of each place.
func (all renamedPlaces) mounts(r record.Record) error {
	thread, err := mountns.Enter(r.Init)
	if err != nil {
		return err
	}
	defer thread.Stop()
	return thread.Do(func() (err error) {
		for _, n := range all {
			if n.merged, err = mountns.OpenInside(n.Path, unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
				return err
			}
		}
		return nil
	})
}

// makeWhole makes the directories whole. With mark no process may rename a directory meanwhile.
func (all renamedPlaces) makeWhole(ctx context.Context, mark bool) error {
	for _, n := range all {
		for _, d := range n.dirs {
			if err := layer.MakeWhole(ctx, n.merged, n.layers[0], d.Path, mark); err != nil {
				return fmt.Errorf("%s: %w%s", n.Path, err, wayOut(err))
			}
		}
	}
	return nil
}

// wayOut is the advice for a renamed directory that cannot be copied.
func wayOut(err error) string {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return "; the sandbox has no room for the copy: remove files in the sandbox, or rename the directory back"
	}
	return "; rename the directory back in the sandbox, or replace it by a copy"
}

// MakeWhole makes all renamed directories of the sandbox whole. The caller holds the sandbox, which
// is paused for the end of the work.
func (v *Files) MakeWhole(ctx context.Context) error {
	return v.withOwn(ctx, func(r record.Record, _ *os.File, all renamedPlaces) error {
		some, err := all.find(ctx, isPartial)
		if err != nil || len(some) == 0 {
			return err
		}
		if err := all.mounts(r); err != nil {
			return err
		}
		if err := some.makeWhole(ctx, false); err != nil { // the most of it, while the sandbox goes on
			return err
		}
		return v.standing(r, func() error { return all.finish(ctx) })
	})
}

// finish makes all renamed directories whole in a sandbox that stands still.
func (all renamedPlaces) finish(ctx context.Context) error {
	some, err := all.find(ctx, isPartial)
	if err != nil {
		return err
	}
	return some.makeWhole(ctx, true)
}

// Untie is for an apply that has read all changes since a time. It refuses if a directory is not whole, or was renamed
// and renamed back since: the apply would lose content. With u.Directories it has the kernel take the content of renamed
// directories from the layer only, so that the host's directories below can go. It refuses, too, if a process uses such a directory, since the kernel remembers the directory
// below for the process. The caller holds the sandbox.
func (v *Files) Untie(ctx context.Context, u protocol.Untie) error {
	return v.withOwn(ctx, func(r record.Record, store *os.File, all renamedPlaces) error {
		if must, err := v.mustUntie(ctx, all, u); err != nil || !must {
			return err
		}
		if s := (&layerSwitch{files: v, record: r, store: store}); !neverTransacted(store) {
			if err := s.noTransactions(ctx); err != nil {
				return err
			}
		}
		return v.standing(r, func() error { return all.untie(ctx, r, v, u) })
	})
}

// mustUntie tells whether a directory of the host was renamed. The processes stand still meanwhile: a look beside them
// misses a directory that they rename again. A host without a freezer has no better look.
func (v *Files) mustUntie(ctx context.Context, all renamedPlaces, u protocol.Untie) (must bool, err error) {
	note, err := v.whileStill(func() (ended bool, err error) {
		if err := all.unmoved(ctx, u); err != nil || !u.Directories {
			return true, err
		}
		some, err := all.findAll(ctx, isTied)
		must = len(some) > 0
		return true, err
	})
	if errors.Is(note, errNoFreezer) {
		note = nil
	}
	return must, errors.Join(err, note)
}

// untie is Untie in a sandbox that stands still.
func (all renamedPlaces) untie(ctx context.Context, r record.Record, v *Files, u protocol.Untie) error {
	if err := all.unmoved(ctx, u); err != nil {
		return err
	}
	some, err := all.find(ctx, isTied)
	if err != nil || len(some) == 0 {
		return err
	}
	if err := some.mounts(r); err != nil {
		return err
	}
	users, err := some.users(r, v.Group)
	if err != nil {
		return err
	}
	if len(users) > 0 {
		return fmt.Errorf("%w: directories of the host were renamed in the sandbox, and %s; first end each process that is named here", statedir.ErrHeld, strings.Join(users, ", "))
	}
	if err := some.each(func(upper *os.File, path string) error { return layer.MakeOpaque(ctx, upper, path) }); err != nil {
		return err
	}
	for _, n := range some {
		if err := rootfs.Forget(n.merged); err != nil {
			return err
		}
	}
	return some.each(layer.NoteUntied)
}

// tick is longer than the kernel uses one time for changes of files.
const tick = 10 * time.Millisecond

// unmoved returns an error if a directory is not whole, or was renamed back, since an apply began to read. No process
// may rename a directory meanwhile.
func (all renamedPlaces) unmoved(ctx context.Context, u protocol.Untie) error {
	find := all.find
	if u.Directories {
		find = all.findAll
	}
	some, err := find(ctx, isPartial)
	if err != nil {
		return err
	}
	if len(some) > 0 {
		return fmt.Errorf("%s: %w", streams.Visible(path.Join(some[0].Path, some[0].dirs[0].Path)), layer.ErrRenamed)
	}
	for _, n := range all {
		back, err := layer.FindBack(ctx, u.Since.Add(-tick), n.layers...)
		if unlessTooDeep(err) != nil {
			return fmt.Errorf("look for renamed directories in %s: %w", n.Path, err)
		}
		if len(back) > 0 {
			return fmt.Errorf("%s: %w", streams.Visible(path.Join(n.Path, back[0])), layer.ErrRenamed)
		}
	}
	return nil
}

// each calls f with the layer and the path of each directory.
func (all renamedPlaces) each(f func(upper *os.File, path string) error) error {
	for _, n := range all {
		for _, d := range n.dirs {
			if err := f(n.layers[d.Layer], d.Path); err != nil {
				return fmt.Errorf("%s: %w", n.Path, err)
			}
		}
	}
	return nil
}

// withOwn calls f with the sandbox's own layers, while no transaction joins.
func (v *Files) withOwn(ctx context.Context, f func(record.Record, *os.File, renamedPlaces) error) error {
	r, err := record.Read(v.Path())
	if err != nil {
		return err
	}
	store, err := record.OpenStore(r.Init)
	if err != nil {
		return record.NotFound(v.ID, err)
	}
	defer store.Close()
	own := func() error {
		all, err := openOwn(r, store)
		defer all.close()
		if err != nil {
			return err
		}
		return f(r, store, all)
	}
	if neverTransacted(store) {
		return own() // a full store has no room for the lock
	}
	return inTurn(ctx, store, own)
}

// neverTransacted says that there was no transaction in a store.
func neverTransacted(store *os.File) bool {
	_, err := os.Lstat(StorePath(store, "tx"))
	return errors.Is(err, os.ErrNotExist)
}

// standing calls f while all processes of the sandbox stand still. The record of the sandbox says so: if this
// process is killed, the next one resumes the sandbox.
func (v *Files) standing(r record.Record, f func() error) error {
	s := &layerSwitch{files: v, record: r}
	s.record.Switch = &record.Switch{Layers: map[string]int{}, Paused: v.Paused()}
	if err := v.Keep(s.record); err != nil {
		return err
	}
	err := s.pause()
	if err == nil {
		err = f()
	}
	return errors.Join(err, s.end())
}

// makeWhole makes the directories whole that the command of a transaction has renamed. Its processes are gone.
func (t *Transaction) makeWhole(ctx context.Context) error {
	var all renamedPlaces
	defer func() {
		for _, n := range all {
			descriptor.Close(n.layers...) // merged is the transaction's
		}
	}()
	for i, c := range t.covers {
		if c.Same != "" {
			continue
		}
		dir, err := descriptor.OpenDir(t.dir, strconv.Itoa(i)+"/data")
		if err != nil {
			return err
		}
		all = append(all, &renamedPlace{Place: c.Place, layers: []*os.File{dir}, merged: c.mount})
	}
	return all.finish(ctx)
}

// wholeForSwitch makes all renamed directories whole in a sandbox that stands still, before its layers are frozen.
// The caller must close the renamedPlaces.
func (s *layerSwitch) wholeForSwitch(ctx context.Context) (all renamedPlaces, err error) {
	if all, err = openOwn(s.record, s.store); err != nil {
		return nil, err
	}
	some, err := all.find(ctx, isPartial)
	if err != nil || len(some) == 0 {
		return all, err
	}
	if err := some.mounts(s.record); err != nil {
		return all, err
	}
	return all, some.makeWhole(ctx, true)
}

// untieFrozen makes the whole directories of layers opaque that no process uses any more. After an error a fork
// shows new files of the host in a renamed directory.
func (all renamedPlaces) untieFrozen(ctx context.Context) {
	_ = all.makeOpaque(ctx)
}

// makeOpaque makes the whole directories of layers opaque that no process uses.
func (all renamedPlaces) makeOpaque(ctx context.Context) error {
	some, err := all.find(ctx, isTied)
	if err != nil {
		return err
	}
	return some.each(func(upper *os.File, path string) error {
		if err := layer.MakeOpaque(ctx, upper, path); err != nil {
			return err
		}
		return layer.NoteUntied(upper, path)
	})
}

// UntieStopped has the kernel take the content of renamed directories from the layers only, before a snapshot keeps the
// layers of a stopped sandbox. Else the kernel would look in the host's directories, which an apply may have changed
// since. It returns true if directories are left with content on the host: then no apply was possible.
func UntieStopped(ctx context.Context, r record.Record, store *os.File) (left bool, err error) {
	all, err := openOwn(r, store)
	defer all.close()
	if err != nil {
		return true, err
	}
	if some, err := all.findAll(ctx, isPartial); err != nil || len(some) > 0 {
		return true, err
	}
	if err := all.makeOpaque(ctx); err != nil {
		return true, err
	}
	some, err := all.findAll(ctx, isNotOpaque)
	return len(some) > 0, err
}

// HasPartial tells whether a directory in the layers of a sandbox is not whole. [layer.ErrTooDeep] says that this is
// not known of all.
func HasPartial(ctx context.Context, r record.Record, store *os.File) (bool, error) {
	all, err := openOwn(r, store)
	defer all.close()
	if err != nil {
		return false, err
	}
	some, err := all.findAll(ctx, isPartial)
	return len(some) > 0, err
}

// wholeForFork copies the renamed directories of the snapshot's layers to the new upper layers. Nothing runs in the
// sandbox yet.
func (s *layerSwitch) wholeForFork(ctx context.Context) error {
	k := &stacker{roots: s.files.Roots, record: s.record, store: s.store, images: map[string]*os.File{}}
	defer func() { descriptor.Close(slices.Collect(maps.Values(k.images))...) }()
	for _, c := range s.covers {
		if c.Same != "" {
			continue
		}
		if err := s.wholeIn(ctx, k, c); err != nil {
			return err
		}
	}
	return nil
}

func (s *layerSwitch) wholeIn(ctx context.Context, k *stacker, c *cover) error {
	n := &renamedPlace{Place: c.Place}
	defer func() { descriptor.Close(n.layers...) }() // merged is the cover's
	upper, err := descriptor.OpenDir(s.store, fmt.Sprintf("layer/%d/data", s.record.Switch.Layers[c.Path]))
	if err != nil {
		return err
	}
	n.layers, n.merged = []*os.File{upper}, c.mount
	for _, ref := range s.record.Stacks[c.Path].Below {
		dir, err := k.frozen(ref)
		if err != nil {
			return err
		}
		n.layers = append(n.layers, dir)
	}
	some, err := renamedPlaces{n}.find(ctx, isNotOpaque)
	if err != nil || len(some) == 0 {
		return err
	}
	if !c.renames(s.record.Places()) { // the kernel follows no redirect there
		return &fault.ConfigError{Reason: fmt.Sprintf("in %s a directory of the host was renamed, and now secrets of the host are hidden, or something is mounted, further down than in %[1]s itself; take these away, or leave out --from", c.Path)}
	}
	return some.makeWhole(ctx, true)
}
