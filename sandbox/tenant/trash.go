package tenant

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"golang.org/x/sys/unix"
)

// A sandbox has made the content of the trash: directories so deep that no path reaches
// their ground, without permissions, with entries that become links or FIFOs meanwhile.
// Nothing is followed, and each level of a deep tree is moved up before it is emptied, so
// that a few descriptors are enough.

const (
	// patience is how often a directory may have something in it again, because
	// a sandbox still writes to it.
	patience = 16
	// movedAtOnce bounds the remembered part of a directory full of directories.
	movedAtOnce = 1024
)

// emptyTrash removes all that is in a directory.
func emptyTrash(ctx context.Context, trash *os.File) error {
	dir, err := openDir(trash, ".") // from the beginning
	if err != nil {
		return err
	}
	names, err := dir.Readdirnames(-1)
	if err := errors.Join(err, dir.Close()); err != nil {
		return err
	}
	var failures []error
	for _, name := range names {
		if err := removeTree(ctx, trash, name); err != nil {
			failures = append(failures, fmt.Errorf("empty the trash: %w", err))
		}
	}
	return errors.Join(failures...)
}

// removeTree removes one directory of the trash.
func removeTree(ctx context.Context, trash *os.File, name string) error {
	again := 0
	for todo := []string{name}; len(todo) > 0; {
		if err := ctx.Err(); err != nil {
			return err
		}
		moved, err := empty(ctx, trash, todo[len(todo)-1])
		switch {
		case len(moved) > 0: // these first
			todo = append(todo, moved...)
		case err == nil:
			todo = todo[:len(todo)-1]
		case again == patience || !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.ENOTDIR):
			return err
		default:
			again++
		}
	}
	return nil
}

// empty removes a directory of the trash, or its entries that are no directories, and
// moves directories up.
func empty(ctx context.Context, trash *os.File, name string) (moved []string, err error) {
	dir, err := openPrivate(trash, name)
	if err != nil {
		return nil, ignoreGone(err)
	}
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(256)
		if errors.Is(err, io.EOF) || len(moved) >= movedAtOnce {
			break
		}
		if errors.Is(err, fs.ErrNotExist) { // another removes it, too
			return moved, nil
		}
		if err := errors.Join(err, ctx.Err()); err != nil {
			return nil, err
		}
		for _, entry := range names {
			up, err := drop(dir, entry, trash)
			if err != nil {
				return moved, err
			}
			if up != "" {
				moved = append(moved, up)
			}
		}
	}
	if len(moved) > 0 {
		return moved, nil
	}
	return nil, ignoreGone(descriptor.Use(trash, func(fd int) error { return unix.Unlinkat(fd, name, unix.AT_REMOVEDIR) }))
}

func openPrivate(in *os.File, name string) (*os.File, error) {
	if err := makePrivate(in, name); err != nil {
		return nil, err
	}
	return openDir(in, name)
}

// drop removes one entry, or moves it up if it is a directory with something in it.
func drop(dir *os.File, name string, trash *os.File) (up string, err error) {
	err = unix.Unlinkat(fd(dir), name, 0)
	if err != unix.EISDIR && err != unix.EPERM { // POSIX has the latter for directories
		return "", ignoreGone(err)
	}
	err = unix.Unlinkat(fd(dir), name, unix.AT_REMOVEDIR)
	if err != unix.ENOTEMPTY && err != unix.EEXIST {
		return "", ignoreGone(err)
	}
	if err := makePrivate(dir, name); err != nil { // else it can't be moved
		return "", ignoreGone(err)
	}
	if up, err = move(dir, name, trash); err != nil {
		return "", ignoreGone(err)
	}
	return up, nil
}

// ignoreGone drops the error for a file that another process has removed meanwhile.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
