package layer

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// MakeWhole copies the content of a renamed directory from the layers below to the uppermost layer.
// merged is the mounted overlay, and upper its uppermost layer. The kernel makes the copies,
// each as at a write to the file. A file with several names becomes several files.
//
// With mark it also marks the directory and all directories below: from then on the layer
// is read without the layers below. No process may rename a directory meanwhile.
//
// The path may vanish at any time, also before the call.
func MakeWhole(ctx context.Context, merged, upper *os.File, path string, mark bool) error {
	if err := checkPath(path); err != nil {
		return err
	}
	dir, name := Split(path)
	above, err := openPath(int(merged.Fd()), dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return unlessGone(path, err)
	}
	defer unix.Close(above)
	// A mount there hides the content, and must go on to do so.
	at, err := openPath(above, name, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return unlessGone(path, err)
	}
	unix.Close(at)
	c := copier{ctx: ctx, merged: merged, upper: upper, mark: mark}
	if err := copyUp(above, name); err != nil { // a layer of a snapshot may have the redirect
		return unlessGone(path, err)
	}
	return unlessGone(path, c.walk(path, 0, c.level))
}

// MakeOpaque has the kernel read a whole directory, and all directories below, from the layer only.
// The kernel notices that once it has forgotten the directories.
func MakeOpaque(ctx context.Context, upper *os.File, path string) error {
	if err := checkPath(path); err != nil {
		return err
	}
	c := copier{ctx: ctx, upper: upper}
	return unlessGone(path, c.walk(path, 0, c.notOpaque))
}

// NoteUntied removes the mark of MakeWhole from an opaque directory, once the kernel has forgotten the directory.
func NoteUntied(upper *os.File, path string) error {
	dir, err := openPath(int(upper.Fd()), path, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return unlessGone(path, err)
	}
	defer unix.Close(dir)
	if err := unix.Fremovexattr(dir, wholeXattr); err != nil && err != unix.ENODATA {
		return fmt.Errorf("%s: remove %s: %w", path, wholeXattr, err)
	}
	return nil
}

func unlessGone(path string, err error) error {
	if err == nil || isGone(err) {
		return nil
	}
	return fmt.Errorf("copy the renamed directory %s to the layer: %w", path, err)
}

// A copier is one MakeWhole or MakeOpaque.
type copier struct {
	ctx           context.Context
	merged, upper *os.File
	mark          bool
	names         reader
	xattrs        xattrReader
}

// walk marks a directory of the layer after the directories below it. level returns the directories in a directory, and
// the attribute for its mark. A directory with an empty attribute gets no mark.
func (c *copier) walk(path string, depth int, level func(path string, depth int) (dirs []string, attr string, err error)) error {
	if depth > maxDepth || len(path) > maxPath {
		return ErrTooDeep
	}
	dirs, attr, err := level(path, depth)
	if err != nil {
		return err
	}
	for _, name := range dirs {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		if err := c.walk(Join(path, name), depth+1, level); err != nil && !isGone(err) {
			return err
		}
	}
	if attr == "" {
		return nil
	}
	return setMark(c.upper, path, attr)
}

// level copies the entries of a directory, but not the entries of its directories. It returns nothing for a directory that
// is whole already.
func (c *copier) level(path string, depth int) (dirs []string, attr string, err error) {
	dir, err := openDirectory(int(c.upper.Fd()), path)
	if err != nil {
		return nil, "", err
	}
	defer unix.Close(dir)
	m, err := c.xattrs.marks(dir)
	if err != nil || m.Opaque || m.whole {
		return nil, "", err
	}
	switch {
	case !c.mark:
	case depth == 0 && m.redirect == "": // a layer below has the redirect, as only the topmost directory can
		attr = opaqueXattr
	default:
		attr = wholeXattr
	}
	dirs, err = c.entries(path, dir)
	return dirs, attr, err
}

// entries copies the entries of a directory that the layer lacks. It returns the names of the
// directories.
func (c *copier) entries(path string, above int) (dirs []string, err error) {
	merged, err := openPath(int(c.merged.Fd()), path, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(merged)
	all, err := c.names.entries(nil, merged, 0)
	if err != nil {
		return nil, err
	}
	for _, e := range all {
		if err := c.ctx.Err(); err != nil {
			return nil, err
		}
		var st unix.Statx_t
		if err = statAt(above, e.name, unix.STATX_TYPE, &st); isGone(err) {
			err = copyUp(merged, e.name)
		}
		if err == nil {
			err = statAt(merged, e.name, unix.STATX_TYPE, &st)
		}
		if isGone(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.name, err)
		}
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			dirs = append(dirs, e.name)
		}
	}
	return dirs, nil
}

// copyUp has the kernel copy an entry to the uppermost layer, with all of its content. The kernel does so
// when a process sets the time of the last access. copyUp sets the present time again, which changes nothing else: fs/overlayfs/inode.c, ovl_setattr.
func copyUp(dir int, name string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	times := []unix.Timespec{st.Atim, {Nsec: unix.UTIME_OMIT}}
	err := unix.UtimesNanoAt(dir, name, times, unix.AT_SYMLINK_NOFOLLOW)
	if err == unix.EOVERFLOW {
		return errForeign
	}
	return err
}

// errForeign is about an entry whose owner has no id in the sandbox.
var errForeign = errors.New("belongs to another user of the host")

// notOpaque lists the directories in a directory of the layer that is not opaque yet.
func (c *copier) notOpaque(path string, _ int) (dirs []string, attr string, err error) {
	dir, err := openDirectory(int(c.upper.Fd()), path)
	if err != nil {
		return nil, "", err
	}
	defer unix.Close(dir)
	if m, err := c.xattrs.marks(dir); err != nil || m.Opaque {
		return nil, "", err
	}
	all, err := c.names.entries(nil, dir, 0)
	if err != nil {
		return nil, "", err
	}
	for _, e := range all {
		var st unix.Statx_t
		if err := statAt(dir, e.name, unix.STATX_TYPE, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			dirs = append(dirs, e.name)
		}
	}
	return dirs, opaqueXattr, nil
}

func setMark(upper *os.File, path, attr string) error {
	dir, err := openPath(int(upper.Fd()), path, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err := unix.Fsetxattr(dir, attr, []byte("y"), 0); err != nil {
		return fmt.Errorf("set %s: %w", attr, err)
	}
	return nil
}
