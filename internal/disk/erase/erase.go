// Package erase removes directories of any size and depth that untrusted code has filled.
// It follows no link.
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

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// An erasure removes the content of a directory of a store, of any size and depth. It
// follows no link.
type erasure struct {
	top *os.File
	// truncate has files lose their content first: an open file would keep its room.
	truncate bool
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

func (e *erasure) run(ctx context.Context) error {
	for {
		e.lifted = false
		if err := e.directory(ctx, e.top, 0); err != nil || !e.lifted {
			return err
		}
	}
}

func (e *erasure) directory(ctx context.Context, dir *os.File, depth int) error {
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
			if err := e.entry(ctx, dir, name, depth); err != nil && len(errs) < 10 {
				errs = append(errs, err)
			}
		}
		if err != nil && !errors.Is(err, io.EOF) {
			errs = append(errs, err)
		}
		if err != nil || len(names) == 0 {
			return errors.Join(errs...)
		}
	}
}

func (e *erasure) entry(ctx context.Context, parent *os.File, name string, depth int) error {
	if e.truncate {
		e.truncateFile(parent, name)
	}
	err := unix.Unlinkat(int(parent.Fd()), name, 0)
	if !errors.Is(err, unix.EISDIR) {
		return IgnoreMissing(err)
	}
	if depth >= liftDepth {
		e.lifted = true
		return unix.Renameat2(int(parent.Fd()), name, int(e.top.Fd()), rand.Text(), unix.RENAME_NOREPLACE)
	}
	dir, err := descriptor.OpenDir(parent, name)
	if err != nil {
		return err
	}
	err = e.directory(ctx, dir, depth+1)
	dir.Close()
	return errors.Join(err, unix.Unlinkat(int(parent.Fd()), name, unix.AT_REMOVEDIR))
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
		return IgnoreMissing(err)
	}
	dir, err := descriptor.OpenDir(parent, name)
	if err != nil {
		return err
	}
	err = Contents(ctx, dir)
	dir.Close()
	return errors.Join(err, unix.Unlinkat(int(parent.Fd()), name, unix.AT_REMOVEDIR))
}

// IgnoreMissing returns nil for an error that says that a file is missing.
func IgnoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
