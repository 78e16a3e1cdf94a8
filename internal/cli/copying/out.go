package copying

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/files"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// Out copies from the sandbox to the host. All that comes from inside is hostile: below the
// target each file is reached through an [os.Root], and a link is never written through. The target
// can lie in a workspace, where the sandbox makes links. So only a link to a directory that the user
// has named is followed.
func (c *Copying) Out(ctx context.Context, from, to string) error {
	info, err := c.Files.Stat(ctx, from)
	if _, isOfFile := errors.AsType[*fs.PathError](err); isOfFile {
		return fmt.Errorf("%w in the sandbox", err) // the host has paths of the same form
	} else if err != nil {
		return err
	}
	if to == stream {
		return c.toStdout(ctx, from)
	}
	var there *fs.FileMode
	if existing, err := os.Stat(to); err == nil {
		there = new(existing.Mode())
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	target, err := targetOf(from, to, info.Mode.IsDir(), there)
	if err != nil {
		return err
	}
	if there != nil && there.IsDir() && target == to {
		return c.outInto(ctx, from, target)
	}
	if target, err = hostpaths.Absolute(target); err != nil {
		return err
	}
	parent, err := os.OpenRoot(filepath.Dir(target))
	if err != nil {
		return err
	}
	defer parent.Close()
	return c.outEntry(ctx, from, info, parent, filepath.Base(target), "")
}

func (c *Copying) toStdout(ctx context.Context, from string) error {
	r, err := c.Files.Open(ctx, from, 0, -1)
	if err != nil {
		return err
	}
	copied := make(chan error, 1)
	go func() { // ends with the process, if no process reads the standard output
		_, err := io.Copy(os.Stdout, r)
		copied <- errors.Join(streams.IgnoreEnough(err), r.Close())
	}()
	select {
	case err := <-copied:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// outInto copies the content of a directory into one of the host.
func (c *Copying) outInto(ctx context.Context, from, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return c.outContent(ctx, from, root, "")
}

// outEntry copies one entry of a directory. inside is its path in the copied tree, empty for the
// top of the tree.
func (c *Copying) outEntry(ctx context.Context, from string, info sandbox.FileInfo, to *os.Root, name, inside string) error {
	switch info.Mode.Type() {
	case 0:
		return c.outFile(ctx, from, info.Mode, to, name)
	case fs.ModeDir:
		return c.outDir(ctx, from, info.Mode, to, name, inside)
	case fs.ModeSymlink:
		if !staysWithin(inside, info.Link) {
			c.LeaveOut(from, "a link to "+info.Link+", out of the copied directory")
			return nil
		}
		return replace(to, name, func(temporary string) error { return to.Symlink(info.Link, temporary) })
	}
	if inside == "" {
		return &fs.PathError{Op: "copy", Path: from, Err: errors.New(specialFile)}
	}
	c.LeaveOut(from, specialFile)
	return nil
}

func (c *Copying) outDir(ctx context.Context, from string, mode fs.FileMode, to *os.Root, name, inside string) error {
	err := to.Mkdir(name, mode.Perm()|0o700)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if there, err := to.Lstat(name); err != nil || !there.IsDir() {
		return errors.Join(err, &fs.PathError{Op: "copy a directory to", Path: filepath.Join(to.Name(), name), Err: errNoDirectory})
	}
	dir, err := to.OpenRoot(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	return c.outContent(ctx, from, dir, inside)
}

func (c *Copying) outContent(ctx context.Context, from string, to *os.Root, inside string) error {
	for entry, err := range c.Files.ReadDir(ctx, from) {
		if err != nil {
			return err
		}
		if !filepath.IsLocal(entry.Name) || strings.Contains(entry.Name, "/") || entry.Name == "." {
			return fmt.Errorf("copy %s: the sandbox names an entry %q", from, entry.Name)
		}
		below := strings.TrimSuffix(from, "/") + "/" + entry.Name
		if err := c.outEntry(ctx, below, entry, to, entry.Name, path.Join(inside, entry.Name)); err != nil {
			return err
		}
	}
	return nil
}

func (c *Copying) outFile(ctx context.Context, from string, mode fs.FileMode, to *os.Root, name string) error {
	r, err := c.Files.Open(ctx, from, 0, -1)
	if err != nil {
		return err
	}
	defer r.Close()
	return replace(to, name, func(temporary string) error {
		f, err := to.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode.Perm())
		if err != nil {
			return err
		}
		return errors.Join(copySparse(f, r), f.Close())
	})
}

// copySparse copies all of r to an empty file, and leaves holes in place of zeros.
func copySparse(f *os.File, r io.Reader) error {
	to := &files.Sparse{File: f}
	if _, err := io.Copy(to, r); err != nil {
		return err
	}
	return f.Truncate(to.Size)
}

// replace makes a file under another name, and then gives it its name. So a link of that name is
// replaced and not followed, and a copy that is cut short leaves the old file.
func replace(in *os.Root, name string, create func(temporary string) error) (err error) {
	if there, err := in.Lstat(name); err == nil && !there.Mode().IsRegular() && there.Mode().Type() != fs.ModeSymlink {
		return &fs.PathError{Op: "replace", Path: filepath.Join(in.Name(), name), Err: sandbox.ErrNotRegular}
	}
	temporary := temporaryName()
	defer func() {
		if err != nil {
			_ = in.Remove(temporary) // create may not have made it
		}
	}()
	if err := create(temporary); err != nil {
		return err
	}
	return in.Rename(temporary, name)
}

// staysWithin says that a link at this path of a tree leads to a path of the tree, also if it
// leads through other such links: ".." counts only at its begin, where the directories above
// are no links.
func staysWithin(inside, link string) bool {
	if link == "" || path.IsAbs(link) {
		return false
	}
	parts := strings.Split(link, "/")
	depth := strings.Count(inside, "/")
	for len(parts) > 0 && (parts[0] == ".." || parts[0] == "." || parts[0] == "") {
		if parts[0] == ".." {
			depth--
		}
		parts = parts[1:]
	}
	return depth >= 0 && !slices.Contains(parts, "..")
}
