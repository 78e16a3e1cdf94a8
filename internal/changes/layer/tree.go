package layer

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/autorun"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Open opens the host's side of the overlay and lays the layers on it.
func (t *Tree) Open() error {
	if err := t.openBase(); err != nil {
		return fmt.Errorf("the host's side of the overlay: %w", err)
	}
	t.Stack = Stack{Base: t.Top, IDs: t.inside, BaseIDs: t.insideOfBase}
	t.Remember(nil)
	t.mark()
	for _, l := range t.Layers {
		t.Stack.Layers = append(t.Stack.Layers, Layer{Dir: l.Dir, Marks: l.Marks})
	}
	return nil
}

// openBase opens the overlaid directory: at its path, or else as the launcher found it.
// A directory that is gone has no base.
func (t *Tree) openBase() error {
	if t.Image {
		if t.Host == nil {
			return errors.New("the launcher sent no image")
		}
		t.Top, t.Host = t.Host, nil
		return nil
	}
	there, err := t.isAtPath()
	if err != nil {
		return err
	}
	if there {
		if t.Top, err = OpenTree(t.Path); err != nil {
			return err
		}
		var now unix.Stat_t
		if err := unix.Fstat(int(t.Top.Fd()), &now); err != nil {
			return fmt.Errorf("stat %s: %w", t.Path, err)
		}
		if t.isTop(now) {
			return nil
		}
		if err := t.Top.Close(); err != nil {
			return err
		}
	}
	t.Moved = true
	t.Top, t.Host = t.Host, nil
	return nil
}

// isAtPath tells whether the path leads to the overlaid directory.
func (t *Tree) isAtPath() (bool, error) {
	var now unix.Stat_t
	err := unix.Stat(t.Path, &now)
	switch {
	case err == nil:
		return t.isTop(now), nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return false, nil
	case t.Host != nil:
		return false, nil
	}
	return false, fmt.Errorf("stat %s: %w", t.Path, err)
}

// isTop tells whether a file is the overlaid directory.
func (t *Tree) isTop(st unix.Stat_t) bool {
	return t.Inode == 0 && st.Mode&unix.S_IFMT == unix.S_IFDIR || st.Ino == t.Inode && st.Dev == t.Device
}

// NothingBelowImage is the reason why nothing is applied to the root of an image.
const NothingBelowImage = "nothing of the host is below the layer of an image's root; save the changes, or copy files with cp"

// Applicable returns an error if nothing can be applied to the tree.
func (t *Tree) Applicable() error {
	switch {
	case t.Image:
		return fmt.Errorf("apply to %s: %s", t.Path, NothingBelowImage)
	case t.Moved:
		return fmt.Errorf("apply to %s: the host has moved, replaced or deleted the overlaid directory; put it back in its place, or save the changes", t.Path)
	case t.Partial:
		return fmt.Errorf("apply to %s: a transaction had joined only in part when the sandbox stopped; save the changes, and check them", t.Path)
	}
	return nil
}

// Note is a sentence about a tree that is not shown in full; "" where there is none.
func (t *Tree) Note() string {
	switch {
	case t.Moved && t.Top == nil:
		return t.Path + ": the host has deleted the directory that was overlaid, or it cannot be found; changes are shown as to an empty directory"
	case t.Moved:
		return t.Path + ": the host has moved the directory that was overlaid; changes are shown to the moved directory"
	case t.Partial:
		return t.Path + ": a transaction had joined only in part when the sandbox stopped"
	}
	return ""
}

// A Tree is one overlaid directory.
type Tree struct {
	Overlay
	RunsAs spec.User
	// RunsAs is the sandbox's user inside.
	// Top is the directory of the host. Nil: it is gone, and an empty one stands for it.
	Top    *os.File
	Stack  Stack
	marker *autorun.Marker // nil for an image
	// Moved says that the path leads to another directory, or to none.
	Moved bool
	// real is where the tree lies, if Path leads there by a link.
	real string
}

// Remember notes how changes were applied to the tree.
func (t *Tree) Remember(applied map[string]Stamp) {
	if len(t.Stamps) == 0 {
		t.Stamps = applied
	} else {
		maps.Copy(t.Stamps, applied)
	}
	maps.DeleteFunc(t.Stamps, func(_ string, s Stamp) bool { return s == Stamp{} }) // it is gone
	t.Stack.Stamps = t.Stamps
}

// Absolute names a change by where it is on the host.
func (t *Tree) Absolute(c spec.Change) spec.Change {
	if c.Path != "" {
		c.Path = path.Join(t.Path, c.Path)
	}
	if c.HardLink != "" {
		c.HardLink = path.Join(t.Path, c.HardLink)
	}
	return c
}

// inside translates ids as the layers show them.
func (t *Tree) inside(uid, gid uint32) (insideUID, insideGID uint32, known bool) {
	u, okU := t.insideID(uid, t.User.UID, t.RunsAs.UID)
	g, okG := t.insideID(gid, t.User.GID, t.RunsAs.GID)
	return u, g, okU && okG
}

func (t *Tree) insideID(id, shown, user uint32) (uint32, bool) {
	switch off := int64(id) - t.Base; {
	case id == shown:
		return user, true
	case off < 0 || off >= idCount:
		return 0, false
	default:
		return uint32(off), true
	}
}

// idCount is the number of ids that a sandbox has.
const idCount = 1 << 16

// insideOfBase translates ids on the host: the owner of the tree is the user.
func (t *Tree) insideOfBase(uid, gid uint32) (insideUID, insideGID uint32, known bool) {
	if t.OnDisk {
		return uid, gid, true
	}
	return t.RunsAs.UID, t.RunsAs.GID, uid == t.Owner.UID && gid == t.Owner.GID
}

// OpenTree opens a directory. Anything else, as a pipe that another user has put in its
// place, is an error at once.
func OpenTree(name string) (*os.File, error) {
	return os.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY, 0)
}

// Source names the layers of a tree in the records of applies.
func (t *Tree) Source(id string) string {
	return fmt.Sprintf("%s%s%d", id, SourceSeparator, t.Since.UnixNano())
}

// SourceSeparator is in no id.
const SourceSeparator = "@"
