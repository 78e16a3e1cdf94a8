package store

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	filedraft "github.com/sandbox-runtime/sandbox-runtime/internal/disk/draft"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
)

// A draft is a directory that a process fills, and that gets its name in the store at the end. Its lock
// tells a living draft from the remains of a killed process.
type draft struct {
	path string
	held *os.File
}

func (s *Store) newDraft(ctx context.Context) (*draft, error) {
	// Between mkdir and flock the draft looks like remains.
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	path, err := os.MkdirTemp(s.path("drafts"), "")
	if err != nil {
		return nil, explain(err)
	}
	held, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	if err := descriptor.Lock(ctx, held, descriptor.Exclusive); err != nil {
		return nil, errors.Join(os.NewSyscallError("flock", err), held.Close(), os.Remove(path))
	}
	return &draft{path, held}, nil
}

// create makes a file of the draft.
func (d *draft) create(name string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(d.path, name), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
	return f, explain(err)
}

// write makes a file of the draft with a content, sealed.
func (d *draft) write(name string, content []byte) error {
	f, err := d.create(name)
	if err != nil {
		return err
	}
	if _, err = f.Write(content); err != nil {
		err = explain(err)
	} else {
		err = seal(f)
	}
	return errors.Join(err, f.Close())
}

// close removes the draft, unless it has got its name in the store.
func (d *draft) close() error {
	return errors.Join(statedir.RemoveAll(d.path), d.held.Close())
}

// seal ends the changes of a file: the file is read-only and on disk.
func seal(f *os.File) error {
	return explain(errors.Join(f.Chmod(0o400), f.Sync()))
}

// placeLocked gives the draft its name in the store, in place of damaged content if there is any. The draft
// keeps the path of the old content, and so removes that content at the end.
func (s *Store) placeLocked(d *draft, path string) error {
	if err := d.held.Sync(); err != nil {
		return explain(err)
	}
	err := unix.Renameat2(unix.AT_FDCWD, d.path, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
	if errors.Is(err, fs.ErrExist) {
		err = unix.Renameat2(unix.AT_FDCWD, d.path, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE)
	}
	if err != nil {
		return explain(&os.LinkError{Op: "rename", Old: d.path, New: path, Err: err})
	}
	return syncDir(filepath.Dir(path))
}

// writeLocked writes a file: readers see the old content or all of the new content.
func (s *Store) writeLocked(path string, content []byte) error {
	return explain(filedraft.File{Path: path, Draft: s.path("drafts", rand.Text()), IsDurable: true}.WriteBytes(content))
}

// linkLocked writes a short record as the target of a symbolic link. A crash of the host can undo this, but leaves no
// part of a record: file systems make a link with its target at once. So linkLocked does not wait for the disk. It
// replaces a link, but not a file of [Store.writeLocked].
func linkLocked(path string, content []byte) error {
	err := os.Symlink(string(content), path)
	if !errors.Is(err, fs.ErrExist) {
		return explain(err)
	}
	if old, err := readLink(path); errors.Is(err, unix.EINVAL) || err == nil && bytes.Equal(old, content) {
		return nil
	}
	return explain(errors.Join(os.Remove(path), os.Symlink(string(content), path)))
}

func readLink(path string) ([]byte, error) {
	target, err := os.Readlink(path)
	return []byte(target), err
}

// syncDir writes the names in a directory to disk.
func syncDir(path string) error { return explain(filedraft.Sync(path)) }

// clearLocked removes the entries of a directory whose lock no process holds: drafts and locks of processes
// that have ended.
func clearLocked(dir string) error {
	entries, err := os.ReadDir(dir)
	errs := []error{err}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if !e.IsDir() && !e.Type().IsRegular() {
			errs = append(errs, os.Remove(path)) // of no process of this program
			continue
		}
		f, err := os.OpenFile(path, unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var got bool
		if err == nil {
			if got, err = descriptor.TryLock(f); got {
				err = statedir.RemoveAll(path)
			}
			f.Close()
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// A rest is content that is not in the store any more, and still on disk.
type rest []string

// discardLocked takes content out of the store. The caller erases the rest without the lock: the removal of
// a large file takes time.
func (s *Store) discardLocked(r *rest, path string) error {
	to, err := os.MkdirTemp(s.path("drafts"), "")
	if err == nil {
		if err = os.Rename(path, filepath.Join(to, "content")); err == nil {
			*r = append(*r, to)
			return nil
		}
		_ = os.Remove(to) // empty; the next change of the store tries again
	}
	return statedir.RemoveAll(path) // the disk may be full
}

// erase removes content that was discarded. Another process may do the same meanwhile.
func (r rest) erase() error {
	var errs []error
	for _, path := range r {
		errs = append(errs, statedir.RemoveAll(path))
	}
	return errors.Join(errs...)
}
