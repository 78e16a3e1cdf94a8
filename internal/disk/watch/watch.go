package watch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// A Watch is the watched part of one file system: all of it, or the writes through some of
// its mounts.
type Watch struct {
	group *Group
	fsid  [8]byte
	// kind of mark: of file systems or of mounts.
	kind uint

	// Of group.mu. roots are opened for names to be looked up on their mounts.
	roots      []Root
	recordings []*Recording
	// marked says that the kernel tells; it does not while all recordings have
	// had more than they hold.
	marked bool
}

// A Root opens a directory of the watched file system, or a bound file, for reading, each
// time that it is asked: between these times the mount is not in use.
type Root func() (*os.File, error)

// FileSystem watches all of the file system that a directory is of.
func (g *Group) FileSystem(root Root) (*Watch, error) { return g.add(root, unix.FAN_MARK_FILESYSTEM) }

// Mount watches the writes through the mount of a directory or a file.
func (g *Group) Mount(root Root) (*Watch, error) { return g.add(root, unix.FAN_MARK_MOUNT) }

func (g *Group) add(root Root, kind uint) (*Watch, error) {
	dir, err := root()
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &fs); err != nil {
		return nil, fmt.Errorf("statfs %s: %w", dir.Name(), err)
	}
	w := &Watch{group: g, kind: kind, roots: []Root{root}}
	binary.NativeEndian.PutUint32(w.fsid[:], uint32(fs.Fsid.Val[0]))
	binary.NativeEndian.PutUint32(w.fsid[4:], uint32(fs.Fsid.Val[1]))
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, os.ErrClosed
	}
	if err := w.markLocked(unix.FAN_MARK_ADD, dir); err != nil {
		return nil, err
	}
	w.marked = true
	same := func(o *Watch) bool { return o.fsid == w.fsid && o.kind == kind }
	if i := slices.IndexFunc(g.watches, same); i >= 0 {
		g.watches[i].roots = append(g.watches[i].roots, root)
		return g.watches[i], nil
	}
	g.watches = append(g.watches, w)
	return w, nil
}

// markLocked begins or ends the kernel's news about the file system of a file.
func (w *Watch) markLocked(op uint, at *os.File) error {
	mask := uint64(told)
	if w.kind == unix.FAN_MARK_MOUNT {
		mask = written
	}
	err := unix.FanotifyMark(int(w.group.file.Fd()), op|w.kind, mask, unix.AT_FDCWD, fdPath(int(at.Fd())))
	if err != nil {
		return fmt.Errorf("fanotify_mark %s: %w", at.Name(), err)
	}
	return nil
}

// markAllLocked is markLocked of all roots.
func (w *Watch) markAllLocked(op uint) error {
	var errs []error
	for _, root := range w.roots {
		at, err := root()
		if err == nil {
			err = w.markLocked(op, at)
			at.Close()
		}
		errs = append(errs, err)
	}
	w.marked = op == unix.FAN_MARK_ADD
	return errors.Join(errs...)
}

// Close ends the watch. It may be called again, and after the group's Close.
func (w *Watch) Close() {
	g := w.group
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.watches, w)
	if i < 0 {
		return
	}
	g.watches = slices.Delete(g.watches, i, i+1)
	// A mark that cannot be removed ends with the group, or with its file system.
	_ = w.markAllLocked(unix.FAN_MARK_REMOVE)
}

// tellLocked tells the recordings of an event.
func (w *Watch) tellLocked(e event) {
	hungry := false
	for _, r := range w.recordings {
		r.add(w, e)
		hungry = hungry || !r.full
	}
	if !hungry && len(w.recordings) > 0 && w.marked {
		// A mark that cannot be removed costs some time.
		_ = w.markAllLocked(unix.FAN_MARK_REMOVE)
	}
}
