package overlay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/mountns"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
)

// TakeBackSwitch ends a switch that has failed, or was left by a process that was
// killed: the new layers are mounted if the record has them, else all is as it was.
// The caller holds the sandbox.
func (v *Files) TakeBackSwitch() error {
	r, err := record.Read(v.Path())
	if err != nil || r.Switch == nil {
		return err
	}
	s := &layerSwitch{files: v, record: r}
	if s.store, err = record.OpenStore(r.Init); err != nil {
		return err
	}
	defer s.store.Close()
	for _, c := range newCovers(r) {
		_, own := r.Switch.Layers[c.Path]
		if _, same := r.Switch.Layers[c.Same]; own || same && c.Same != "" {
			s.covers = append(s.covers, c)
		}
	}
	defer s.covers.close()
	if err := s.uncoverRoot(); err != nil {
		return err
	}
	if s.thread, err = mountns.Enter(r.Init); err != nil {
		return err
	}
	defer s.thread.Stop()
	if r.Switch.Done {
		err = s.finish()
	} else {
		err = s.thread.Do(func() error { return s.covers.freeze(false) })
		err = errors.Join(err, s.files.keeper.discardLayers(s.store, slices.Collect(maps.Values(r.Switch.Layers))))
	}
	if err != nil {
		return err
	}
	return s.end()
}

// uncoverRoot unmounts what a pivot that was cut short has left over the root of the sandbox's processes: the new root
// before the pivot, or the old one after it.
func (s *layerSwitch) uncoverRoot() error {
	if !slices.ContainsFunc(s.covers, (*cover).isRoot) {
		return nil
	}
	thread, err := mountns.Enter(s.record.Init)
	if err != nil {
		return err
	}
	defer thread.Stop()
	has, err := mountID(unix.AT_FDCWD, fmt.Sprintf("/proc/%d/root", s.record.Init.Pid), 0)
	if err != nil {
		return fmt.Errorf("root of the sandbox: %w", err)
	}
	return thread.Do(func() error {
		top, err := mountID(unix.AT_FDCWD, "/", 0)
		if err != nil || top == has {
			return err
		}
		return mountns.Uncover()
	})
}

// finish mounts the new layers at the places where the present mount is still frozen.
func (s *layerSwitch) finish() error {
	if err := s.thread.Do(s.covers.mountedInPairs); err != nil {
		return err
	}
	mounts, err := mountns.Of(s.record.Init)
	if err != nil {
		return err
	}
	err = s.thread.Do(func() error {
		s.covers = slices.DeleteFunc(slices.Clone(s.covers), func(c *cover) bool { return !mountns.IsFrozen(c.Path) })
		return s.covers.openMounts(mounts)
	})
	if err != nil {
		return err
	}
	below := s.record.Clone()
	for _, c := range s.covers { // the layers below the new one
		n, ok := s.record.Switch.Layers[c.Path]
		if !ok {
			continue
		}
		if err := s.files.keeper.DiscardIn(s.store, "layer/"+strconv.Itoa(n)); err != nil {
			return err
		}
		below.WithoutUpper(c.Place)
		if c.Tree != nil {
			c.Tree = below.TreeAt(c.Path)
		}
	}
	s.record, below = below, s.record
	err = s.stack()
	s.record = below
	if err != nil {
		return err
	}
	if err := s.thread.Do(s.covers.mountAll); err != nil {
		return err
	}
	// The new layers are empty. After an error the switch is done all the same, and untieFrozen tells the effect.
	frozen, err := openOwn(s.record, s.store)
	defer frozen.close()
	if err == nil {
		frozen.untieFrozen(context.Background())
	}
	return nil
}

// mountedInPairs unmounts a new layer at one of two places that show the same, if the
// other place does not have it yet: it cannot be mounted there now. No process has used
// it, as the sandbox is still paused.
func (all covers) mountedInPairs() error {
	for _, c := range all {
		if c.Same == "" || mountns.IsFrozen(c.Path) == mountns.IsFrozen(c.Same) {
			continue
		}
		mounted := c.Path
		if mountns.IsFrozen(mounted) {
			mounted = c.Same
		}
		if err := unix.Unmount(mounted, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s in the sandbox: %w", mounted, err)
		}
	}
	return nil
}
