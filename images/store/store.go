package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/images/index"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
)

// version is the content of the file of that name. Another version has another layout.
const version = "1\n"

// Limits bound an image, and the images of each user.
type Limits struct {
	LayerBytes int64 // the size of the tar of a layer
	Spare      bool  // a layer leaves a tenth of the free space of the file system
	Index      index.Limits
	// Of each user.
	Images, References, Layers int
}

// DefaultLimits are the limits of [Open].
func DefaultLimits() Limits {
	return Limits{LayerBytes: 32 << 30, Index: index.DefaultLimits(), Images: 1000, References: 4000, Layers: 10000}
}

// A Store is a directory of images. Any number of processes and goroutines can use it at a time.
type Store struct {
	dir    string
	limits Limits
	opened fs.FileInfo // of the directory when it was opened
}

// Open opens a store, and makes the directory if it is missing. It removes the remains of killed processes.
// Only root and this user may have the right to write there.
func Open(ctx context.Context, dir string) (*Store, error) {
	s := &Store{dir: filepath.Clean(dir), limits: DefaultLimits()}
	if err := s.prepare(); err != nil {
		return nil, during("open the image store", explain(err))
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, during("open the image store", err)
	}
	defer unlock()
	if err := errors.Join(s.checkVersionLocked(), s.repairLocked()); err != nil {
		return nil, during("open the image store", err)
	}
	return s, nil
}

// prepare makes and checks the directories.
func (s *Store) prepare() error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	top, err := os.OpenFile(s.dir, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer top.Close()
	if err := statedir.CheckOwn(top); err != nil {
		return err
	}
	if s.opened, err = top.Stat(); err != nil {
		return err
	}
	for _, name := range []string{"drafts", "layers", "images", "users"} {
		below, _, err := statedir.OpenBelow(top, name)
		if err != nil {
			return err
		}
		below.Close()
	}
	return nil
}

// IsInPlace says whether the directory is the one that was opened, and is not empty. Otherwise the caller must open
// the store again.
func (s *Store) IsInPlace() bool {
	info, err := os.Lstat(s.dir)
	return err == nil && os.SameFile(s.opened, info) && statedir.Exists(s.path("version"))
}

// checkVersionLocked notes the version of a new store, and refuses another version.
func (s *Store) checkVersionLocked() error {
	path := s.path("version")
	found, err := statedir.ReadOwn(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s.writeLocked(path, []byte(version))
	}
	if err != nil {
		return err
	}
	if string(found) != version {
		return fmt.Errorf("%s: unknown version %q; use the program that made the store, or another directory", path, clip(string(found)))
	}
	return nil
}

// path is a path in the store.
func (s *Store) path(names ...string) string {
	return filepath.Join(append([]string{s.dir}, names...)...)
}

func (s *Store) layerDir(d Digest) string { return s.path("layers", d.hex()) }
func (s *Store) imageDir(d Digest) string { return s.path("images", d.hex()) }

// lock waits for the lock of all names in the store. A process holds the lock for moments, and not while it
// reads or writes a layer.
func (s *Store) lock(ctx context.Context) (unlock func(), err error) {
	f, err := lockFile(ctx, s.path("lock"), descriptor.Exclusive)
	if err != nil {
		return nil, err
	}
	return func() { f.Close() }, nil
}

// locked calls f with the lock of the store.
func locked[T any](ctx context.Context, s *Store, f func() (T, error)) (result T, err error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return result, err
	}
	defer unlock()
	return f()
}

// lockFile makes the file if it is missing, and waits for a lock of it.
func lockFile(ctx context.Context, path string, how descriptor.Hold) (*os.File, error) {
	f, err := descriptor.OpenLocked(ctx, path, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW, how)
	return f, explain(err)
}

// explain adds the way out to the error of a full disk.
func explain(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w; remove images that are not needed, or make room", err)
	}
	return err
}
