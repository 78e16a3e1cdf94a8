package sandbox

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/layer"
)

// open opens the host's side of the overlay and lays the layers on it.
func (t *tree) open() error {
	if err := t.openBase(); err != nil {
		return fmt.Errorf("the host's side of the overlay: %w", err)
	}
	t.stack = layer.Stack{Base: t.base, IDs: t.inside, BaseIDs: t.insideOfBase}
	t.remember(nil)
	t.mark()
	for _, l := range t.Layers {
		t.stack.Layers = append(t.stack.Layers, layer.Layer{Dir: l.Dir, Marks: l.Marks})
	}
	return nil
}

// openBase opens the overlaid directory: at its path, or else as the launcher found it.
// A directory that is gone has no base.
func (t *tree) openBase() error {
	there, err := t.isAtPath()
	if err != nil {
		return err
	}
	if there {
		if t.base, err = openDir(t.Path); err != nil {
			return err
		}
		var now unix.Stat_t
		if err := unix.Fstat(int(t.base.Fd()), &now); err != nil {
			return fmt.Errorf("stat %s: %w", t.Path, err)
		}
		if t.is(now) {
			return nil
		}
		if err := t.base.Close(); err != nil {
			return err
		}
	}
	t.moved = true
	t.base, t.Host = t.Host, nil
	return nil
}

// isAtPath tells whether the path leads to the overlaid directory.
func (t *tree) isAtPath() (bool, error) {
	var now unix.Stat_t
	err := unix.Stat(t.Path, &now)
	switch {
	case err == nil:
		return t.is(now), nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return false, nil
	case t.Host != nil:
		return false, nil
	}
	return false, fmt.Errorf("stat %s: %w", t.Path, err)
}

// is tells whether a file is the overlaid directory.
func (t *tree) is(st unix.Stat_t) bool {
	return t.Inode == 0 && st.Mode&unix.S_IFMT == unix.S_IFDIR || st.Ino == t.Inode && st.Dev == t.Device
}

// applicable returns an error if nothing can be applied to the tree.
func (t *tree) applicable() error {
	switch {
	case t.moved:
		return fmt.Errorf("apply to %s: the host has moved, replaced or deleted the overlaid directory; put it back in its place, or save the changes", t.Path)
	case t.Partial:
		return fmt.Errorf("apply to %s: a transaction had joined only in part when the sandbox stopped; save the changes, and check them", t.Path)
	}
	return nil
}

// note is a sentence about a tree that is not shown in full; "" where there is none.
func (t *tree) note() string {
	switch {
	case t.moved && t.base == nil:
		return t.Path + ": the host has deleted the directory that was overlaid, or it cannot be found; changes are shown as to an empty directory"
	case t.moved:
		return t.Path + ": the host has moved the directory that was overlaid; changes are shown to the moved directory"
	case t.Partial:
		return t.Path + ": a transaction had joined only in part when the sandbox stopped"
	}
	return ""
}

// Notes are sentences for a person, mostly none. Some are about an overlay that Apply
// refuses: the host has moved, replaced or deleted the directory, or the sandbox stopped
// while a transaction joined. The changes can still be read and saved. Other notes tell
// how an earlier apply ended that was killed.
func (c *Changes) Notes() []string {
	notes := slices.Clone(c.notes)
	for _, t := range c.trees {
		if note := t.note(); note != "" {
			notes = append(notes, note)
		}
	}
	return notes
}
