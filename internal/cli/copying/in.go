package copying

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// nonblock keeps an open of a pipe from waiting for a writer.
const nonblock = unix.O_NONBLOCK

// temporaryName is the name of a file that is not complete.
func temporaryName() string { return ".sandbox-runtime-cp-" + rand.Text() }

// In copies from the host to the sandbox. Code in the sandbox may change the host's files
// meanwhile, as in a workspace: below the source each file is reached through an [os.Root].
func (c *Copying) In(ctx context.Context, from, to string) error {
	if from == stream {
		return c.Files.Write(ctx, to, untilDone(ctx, os.Stdin), 0)
	}
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	var there *fs.FileMode
	if existing, err := c.Files.Stat(ctx, to); err == nil {
		there = &existing.Mode
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	target, err := targetOf(from, to, info.IsDir(), there)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return c.inFile(ctx, func(flags int) (*os.File, error) { return os.OpenFile(from, flags, 0) }, target)
	}
	root, err := os.OpenRoot(from)
	if err != nil {
		return err
	}
	defer root.Close()
	return c.inDir(ctx, root, info.Mode(), target)
}

// untilDone reads a stream whose reads can block for ever, until ctx is done. The goroutine of a blocked read ends
// with the process.
func untilDone(ctx context.Context, stream io.Reader) io.Reader {
	r, w := io.Pipe()
	go func() {
		_, err := io.Copy(w, stream)
		w.CloseWithError(err)
	}()
	context.AfterFunc(ctx, func() { w.CloseWithError(context.Cause(ctx)) })
	return r
}

// inDir copies a directory. The root is the directory itself.
func (c *Copying) inDir(ctx context.Context, from *os.Root, mode fs.FileMode, to string) error {
	if err := c.Files.Mkdir(ctx, to, mode.Perm()|0o700); errors.Is(err, fs.ErrExist) {
		if there, err := c.Files.Stat(ctx, to); err != nil || !there.Mode.IsDir() {
			return errors.Join(err, &fs.PathError{Op: "copy a directory to", Path: to, Err: errNoDirectory})
		}
	} else if err != nil {
		return err
	}
	dir, err := from.Open(".")
	if err != nil {
		return err
	}
	entries, err := dir.ReadDir(-1)
	if err := errors.Join(err, dir.Close()); err != nil {
		return err
	}
	for _, entry := range entries {
		if err := c.inEntry(ctx, from, entry, strings.TrimSuffix(to, "/")+"/"+entry.Name()); err != nil {
			return err
		}
	}
	return nil
}

func (c *Copying) inEntry(ctx context.Context, from *os.Root, entry fs.DirEntry, to string) error {
	name := entry.Name()
	switch entry.Type() {
	case 0:
		return c.inFile(ctx, func(flags int) (*os.File, error) { return from.OpenFile(name, flags|unix.O_NOFOLLOW, 0) }, to)
	case fs.ModeDir:
		info, err := entry.Info()
		if err != nil {
			return err
		}
		dir, err := from.OpenRoot(name)
		if err != nil {
			return err
		}
		defer dir.Close()
		return c.inDir(ctx, dir, info.Mode(), to)
	case fs.ModeSymlink:
		link, err := from.Readlink(name)
		if err != nil {
			return err
		}
		return c.inLink(ctx, link, to)
	}
	c.LeaveOut(filepath.Join(from.Name(), name), specialFile)
	return nil
}

func (c *Copying) inFile(ctx context.Context, open func(flags int) (*os.File, error), to string) error {
	f, info, err := openRegular(open)
	if err != nil {
		return err
	}
	defer f.Close()
	return c.Files.Write(ctx, to, f, cmp.Or(info.Mode().Perm(), 0o400)) // 0 has another meaning
}

// inLink makes a link, in place of a file or another link.
func (c *Copying) inLink(ctx context.Context, link, to string) error {
	err := c.Files.Symlink(ctx, link, to)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	there, err := c.Files.Lstat(ctx, to)
	if err != nil {
		return err
	}
	if there.Mode.IsDir() {
		return &fs.PathError{Op: "copy a link to", Path: to, Err: fs.ErrExist}
	}
	if err := c.Files.Remove(ctx, to); err != nil {
		return err
	}
	return c.Files.Symlink(ctx, link, to)
}
