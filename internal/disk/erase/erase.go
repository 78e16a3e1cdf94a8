// Package erase removes directories of any size and depth that untrusted code has filled.
// It follows no link and enters no other mount. Several processes can remove the same directory.
package erase

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// An erasure removes the content of a directory.
type erasure struct {
	top *os.File
	// name is that of top in errors, empty if errors have paths within top.
	name string
	// truncate has files lose their content first: an open file would keep its room.
	truncate bool
	// permit has directories get permissions first.
	permit bool
	// spared are names in top that stay.
	spared []string
	// lifted says that directories were moved up to the top.
	lifted bool
}

// liftDepth is how many nested directories an erasure has open. Deeper directories are moved
// up to the top first: a sandbox can nest a hundred thousand of them.
const liftDepth = 64

// Contents removes the content of a directory, until ctx is done.
func Contents(ctx context.Context, dir *os.File) error { return (&erasure{top: dir}).run(ctx) }

// ContentsInUse is Contents for files that other processes may have open: the files lose
// their content first.
func ContentsInUse(ctx context.Context, dir *os.File) error {
	return (&erasure{top: dir, truncate: true}).run(ctx)
}

// ContentsAsOwner is Contents for a process that is only the owner of the directories: their permissions can keep the
// owner out. The spared names in dir stay.
func ContentsAsOwner(ctx context.Context, dir *os.File, spared ...string) error {
	return (&erasure{top: dir, permit: true, spared: spared}).run(ctx)
}

func (e *erasure) run(ctx context.Context) error {
	for {
		e.lifted = false
		if err := e.directory(ctx, e.top, e.name, 0); err != nil || !e.lifted {
			return err
		}
	}
}

// directory removes the content of a directory at a path.
func (e *erasure) directory(ctx context.Context, dir *os.File, at string, depth int) error {
	if _, err := dir.Seek(0, 0); err != nil {
		return err
	}
	var errs []error
	for {
		names, err := dir.Readdirnames(1000)
		for _, name := range names {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if depth == 0 && slices.Contains(e.spared, name) {
				continue
			}
			if err := e.entry(ctx, dir, at, name, depth); err != nil && len(errs) < 10 {
				errs = append(errs, err)
			}
		}
		if err != nil && !errors.Is(err, io.EOF) {
			errs = append(errs, IgnoreMissing(err)) // another process has removed the directory
		}
		if err != nil || len(names) == 0 {
			return failureOf(errs...)
		}
	}
}

// entry removes an entry of the directory at a path.
func (e *erasure) entry(ctx context.Context, parent *os.File, at, name string, depth int) error {
	if e.truncate {
		e.truncateFile(parent, name)
	}
	err := unix.Unlinkat(int(parent.Fd()), name, 0)
	if !errors.Is(err, unix.EISDIR) {
		return errorAt(at, name, err)
	}
	if e.permit {
		if err := permit(parent, name); err != nil {
			return errorAt(at, name, err)
		}
	}
	if depth >= liftDepth {
		e.lifted = true
		return errorAt(at, name, unix.Renameat2(int(parent.Fd()), name, int(e.top.Fd()), rand.Text(), unix.RENAME_NOREPLACE))
	}
	return withDir(parent, at, name, func(dir *os.File) error { return e.directory(ctx, dir, path.Join(at, name), depth+1) })
}

// withDir empties a directory by a function, and removes the directory.
func withDir(parent *os.File, at, name string, empty func(dir *os.File) error) error {
	fd, err := descriptor.Open(int(parent.Fd()), name, descriptor.OneMount, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return errorAt(at, name, err)
	}
	dir := os.NewFile(uintptr(fd), name)
	err = empty(dir)
	dir.Close()
	return failureOf(err, errorAt(at, name, unix.Unlinkat(int(parent.Fd()), name, unix.AT_REMOVEDIR)))
}

// errorAt adds the path of an entry to an error. It returns nil if the entry is missing.
func errorAt(at, name string, err error) error {
	if IgnoreMissing(err) == nil {
		return nil
	}
	return fmt.Errorf("%q: %w", path.Join(at, name), err)
}

// A failure has the errors of an erasure, and the text of the first one: most of the others follow from it.
type failure []error

func (f failure) Error() string   { return f[0].Error() }
func (f failure) Unwrap() []error { return f }

// failureOf is nil if all errors are.
func failureOf(errs ...error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) == 0 {
		return nil
	}
	return failure(errs)
}

// permit lets the owner of a directory read, change and move it.
func permit(parent *os.File, name string) error {
	fd, err := descriptor.Open(int(parent.Fd()), name, descriptor.OneMount, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer descriptor.CloseFD(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&0o700 == 0o700 {
		return err
	}
	return unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), 0o700)
}

// truncateFile empties a regular file, if it can.
func (e *erasure) truncateFile(parent *os.File, name string) {
	var st unix.Stat_t
	err := unix.Fstatat(int(parent.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return
	}
	fd, err := unix.Openat(int(parent.Fd()), name, unix.O_WRONLY|unix.O_TRUNC|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
}

// Entry removes an entry with all below it. It follows no link. A missing entry is no error.
func Entry(ctx context.Context, parent *os.File, name string) error {
	if path.Base(name) != name {
		return fmt.Errorf("remove %q: %w", name, fs.ErrInvalid)
	}
	err := unix.Unlinkat(int(parent.Fd()), name, 0)
	if !errors.Is(err, unix.EISDIR) {
		return errorAt("", name, err)
	}
	return withDir(parent, "", name, func(dir *os.File) error { return (&erasure{top: dir, name: name}).run(ctx) })
}

// IgnoreMissing returns nil for an error that says that a file is missing.
func IgnoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
