package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/mountns"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
)

// MaxLayers bounds the layers that one overlay has: the kernel takes 500, and each
// is asked about every name that is not there.
const MaxLayers = 100

// switchLayers puts new upper layers on places of a sandbox, which is paused meanwhile.
// Nothing is written to the old layers after that; a snapshot keeps them if it has a name.
// next changes the record for one place. With bare the new layers lie on none of the
// sandbox's own. The caller holds the sandbox.
func (v *Files) switchLayers(ctx context.Context, bare bool, snapshot string, which func(record.Place) bool, next func(*record.Record, record.Place, int)) (err error) {
	r, err := record.Read(v.Path())
	if err != nil {
		return err
	}
	s := &layerSwitch{files: v, record: r}
	if s.store, err = record.OpenStore(r.Init); err != nil {
		return record.NotFound(v.ID, err)
	}
	defer s.store.Close()
	return inTurn(ctx, s.store, func() error {
		if err := s.noTransactions(ctx); err != nil {
			return err
		}
		for _, c := range newCovers(r) {
			if !which(c.Place) {
				continue
			}
			if bare && c.Tree != nil {
				t := *c.Tree
				t.Layers, c.Tree = nil, &t
			}
			s.covers = append(s.covers, c)
		}
		defer s.covers.close()
		if err := s.number(); err != nil {
			return err
		}
		if err := s.nameSnapshot(snapshot); err != nil {
			return err
		}
		if err := v.Keep(s.record); err != nil {
			return err
		}
		if err := s.carryOut(ctx, next); err != nil {
			return errors.Join(err, v.TakeBackSwitch())
		}
		return s.end()
	})
}

// A layerSwitch is a switch of layers under way.
type layerSwitch struct {
	files  *Files
	record record.Record
	store  *os.File
	covers covers
	thread *mountns.Thread
}

// noTransactions refuses to have the files below a transaction change.
func (s *layerSwitch) noTransactions(ctx context.Context) error {
	if err := s.files.keeper.resumeIn(ctx, s.record, s.store); err != nil {
		return err
	}
	return eachTransaction(s.store, func(_ int, _ *os.File, j Journal) error {
		if j.State == txRuns && j.Owner.Lives() {
			return fmt.Errorf("%w: a transaction runs there", statedir.ErrHeld)
		}
		return nil
	})
}

// giveUpUndo discards the undo data of joined transactions: an undo would change other
// layers than the transaction did. The switch must be Done, since a refused switch
// keeps the undo history.
func (s *layerSwitch) giveUpUndo() error {
	return eachTransaction(s.store, func(number int, _ *os.File, j Journal) error {
		if j.State != txJoined {
			return nil
		}
		return s.files.keeper.DiscardIn(s.store, "tx/"+strconv.Itoa(number))
	})
}

// number chooses the new layers' numbers.
func (s *layerSwitch) number() error {
	layers, err := makeDir(s.store, "layer")
	if err != nil {
		return err
	}
	defer layers.Close()
	taken, err := numbered(layers)
	if err != nil {
		return err
	}
	last := slices.Max(append(taken, -1))
	s.record.Switch = &record.Switch{Layers: map[string]int{}, Paused: s.files.Paused()}
	for _, c := range s.covers {
		if c.Same == "" {
			last++
			s.record.Switch.Layers[c.Path] = last
		}
		if n := len(s.record.Own(c.Place)) + len(s.record.Stacks[c.Path].Below); n >= MaxLayers {
			return &fault.ConfigError{Reason: fmt.Sprintf("%s has %d layers, as many as there can be; make a new sandbox from the files that it shows", c.Path, n)}
		}
	}
	return nil
}

// nameSnapshot says which snapshot is made, if one is.
func (s *layerSwitch) nameSnapshot(name string) error {
	if name == "" {
		return nil
	}
	owner, err := s.files.keeper.self()
	if err != nil {
		return err
	}
	s.record.Switch.Snapshot, s.record.Switch.Draft = name, "."+DraftName(owner)
	return nil
}

// carryOut does all that can fail before anything is another.
func (s *layerSwitch) carryOut(ctx context.Context, next func(*record.Record, record.Place, int)) (err error) {
	v := s.files
	if err := s.pause(); err != nil {
		return err
	}
	if s.thread, err = s.covers.enter(s.record.Init); err != nil {
		return err
	}
	defer s.thread.Stop()
	var frozen renamedPlaces
	if s.record.Switch.Snapshot != "" {
		frozen, err = s.wholeForSwitch(ctx)
		defer frozen.close()
		if err != nil {
			return err
		}
	}
	if err := s.stack(); err != nil {
		return err
	}
	if err := s.thread.Do(func() error { return s.covers.freeze(true) }); err != nil {
		return s.busy(err)
	}
	users, err := s.users()
	if err != nil {
		return err
	}
	if len(users) > 0 {
		return s.busy(fmt.Errorf("%w: %s", statedir.ErrHeld, strings.Join(users, ", ")))
	}
	if s.record.Switch.Draft != "" {
		if err := v.keeper.DraftSnapshot(s.record); err != nil {
			return err
		}
	}
	changed := s.record.Clone()
	changed.Version = record.FormatVersion // an older one had other mounts
	done := *changed.Switch
	done.Done = true
	changed.Switch = &done
	for _, c := range s.covers {
		if n, ok := done.Layers[c.Path]; ok {
			next(&changed, c.Place, n)
		}
	}
	if err := v.Keep(changed); err != nil {
		return err
	}
	s.record = changed
	if err := s.thread.Do(s.covers.mountAll); err != nil {
		return err
	}
	frozen.untieFrozen(ctx)
	return nil
}

// stack makes the new overlays.
func (s *layerSwitch) stack() error {
	return s.files.keeper.stack(s.record, s.store, s.covers, func(_ int, c *cover) (*os.File, error) {
		return makeDir(s.store, fmt.Sprintf("layer/%d", s.record.Switch.Layers[c.Path]))
	})
}

// freeze makes the mounts at the places read-only, or writable again. The kernel refuses
// that while a process writes there (mount_setattr(2)).
func (all covers) freeze(frozen bool) error {
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if !frozen {
		attr = unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
	}
	for _, c := range all {
		f, err := mountns.Open(c.Path)
		if err != nil {
			return err
		}
		err = unix.MountSetattr(int(f.Fd()), "", unix.AT_EMPTY_PATH, &attr)
		f.Close()
		if err != nil {
			return fmt.Errorf("mount_setattr %s in the sandbox: %w", c.Path, err)
		}
	}
	return nil
}

// busy words the error for mounts that are in use.
func (s *layerSwitch) busy(err error) error {
	if !errors.Is(err, unix.EBUSY) && !errors.Is(err, statedir.ErrHeld) {
		return err
	}
	users, failed := s.users()
	if failed != nil {
		return errors.Join(err, failed)
	}
	if len(users) == 0 {
		return fmt.Errorf("%w: a process in the sandbox writes to its files; end the process first", statedir.ErrHeld)
	}
	return fmt.Errorf("%w: %s; first end each process that is named here", statedir.ErrHeld, strings.Join(users, ", "))
}

// end resumes the sandbox and then notes the end of the switch: only the record says that
// the sandbox is paused for no other reason. Then it removes the layers that are not
// needed any more.
func (s *layerSwitch) end() error {
	w := s.record.Switch
	var kept error
	if w.Done { // while the sandbox stands still: no later transaction can have joined
		kept = s.giveUpUndo()
	}
	if !w.Paused {
		if err := s.files.letGoOn(); err != nil {
			return errors.Join(kept, err)
		}
	}
	if kept != nil {
		return kept // the next opener ends the switch
	}
	var named error
	if w.Draft != "" {
		named = s.files.keeper.EndDraft(s.record)
	}
	if w.Done && len(w.Old) > 0 {
		if err := errors.Join(s.files.keeper.discardLayers(s.store, w.Old), s.files.forgetApplied(s.record)); err != nil {
			return err
		}
	}
	s.record.Switch = nil
	return errors.Join(named, s.files.Keep(s.record))
}

func (s *layerSwitch) pause() error {
	if s.record.Switch.Paused {
		return nil
	}
	return s.files.freeze()
}

func (v *Files) letGoOn() error {
	c, err := v.Container()
	if err == nil {
		err = c.Resume()
	}
	if errors.Is(err, container.ErrNotPaused) {
		return nil
	}
	return err
}
