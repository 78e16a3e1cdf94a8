package statedir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
)

// A Dir is the directory of a sandbox, <root>/@sandboxes/<id>, held with flock(2). The
// directory stands for the sandbox: it is made first and removed last. A process holds the
// directory while it makes, changes or removes the sandbox. The names of all other parts of
// a sandbox follow from the id. So recovery needs to find only the directories of sandboxes
// that are not up and that no process holds.
//
// The id of a container has no "@". So these directories never meet containers, which
// libcontainer keeps in <root>/<id>.
type Dir struct {
	Path string
	held *os.File
}

// ErrHeld says that another process works on the sandbox.
var ErrHeld = fault.ErrBusy

// Make makes the directory of a sandbox that does not exist yet, held.
func Make(parent, id string) (*Dir, error) {
	if err := Check(parent); err != nil { // before a refused state root gets a directory
		return nil, err
	}
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return nil, err
	}
	// Makers share the lock; a process that looks for stale directories does not: between
	// mkdir and flock the new directory looks stale.
	unlock, err := lockParent(parent, descriptor.Shared)
	if err != nil {
		return nil, err
	}
	defer unlock()
	path := filepath.Join(parent, id)
	if err := os.Mkdir(path, 0o700); err != nil {
		return nil, err
	}
	s, err := open(path)
	if err != nil {
		return nil, errors.Join(err, RemoveAll(path))
	}
	if err := s.Sign(); err != nil {
		return nil, errors.Join(err, s.Remove())
	}
	return s, nil
}

// Hold takes hold of the directory of a sandbox that exists.
func Hold(parent, id string) (*Dir, error) {
	unlock, err := lockParent(parent, descriptor.Exclusive)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return open(filepath.Join(parent, id))
}

// Await is Hold, and waits for the process that works on the sandbox now. The error is
// fs.ErrNotExist if that process has removed the sandbox.
func Await(ctx context.Context, parent, id string) (*Dir, error) {
	ctx, cancel := context.WithTimeout(ctx, CleanupTime)
	defer cancel()
	for {
		s, err := Hold(parent, id)
		if !errors.Is(err, ErrHeld) {
			return s, err
		}
		if Sleep(ctx, time.Millisecond) != nil {
			return nil, err
		}
	}
}

// orphanPatience is how long the directory of a dead owner may stay held: a process that
// the owner was about to start has all descriptors of the owner until it executes.
const orphanPatience = 2 * time.Second

// HoldOrphan is Hold, and waits for a directory that only seems to be in use, because its
// owner was killed a moment ago.
func HoldOrphan(parent, id string) (*Dir, error) {
	for end := time.Now().Add(orphanPatience); ; time.Sleep(time.Millisecond) {
		s, err := Hold(parent, id)
		if !errors.Is(err, ErrHeld) || time.Now().After(end) || OwnerLives(filepath.Join(parent, id)) {
			return s, err
		}
	}
}

// IsHeld says whether a process works on the sandbox with this directory.
func IsHeld(path string) bool {
	s, err := Hold(filepath.Split(path))
	if err == nil {
		s.Release()
	}
	return errors.Is(err, ErrHeld)
}

// Sleep returns nil after d, or ctx's error as soon as that ends.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// ownerName is a file in a sandbox's directory that says which process made it.
const ownerName = "owner"

// thisProcess is read once: a launcher signs a directory for each sandbox.
var thisProcess = sync.OnceValues(func() (process.ID, error) { return process.Of(os.Getpid()) })

// Sign names this process as the one that works on the sandbox: see [OwnerLives].
func (s *Dir) Sign() error {
	self, err := thisProcess()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.Path, ownerName), []byte(self.String()), 0o600)
}

// OwnerLives says whether the process that made the directory lives. It is true if that
// cannot be told.
func OwnerLives(path string) bool {
	text, err := os.ReadFile(filepath.Join(path, ownerName))
	if err != nil {
		return true
	}
	owner, err := process.Parse(string(text))
	return err != nil || owner.Lives()
}

// lockParent waits for the lock of the directory of all sandboxes. Processes hold that lock
// for moments only.
func lockParent(parent string, how descriptor.Hold) (unlock func(), err error) {
	if err := Check(parent); err != nil {
		return nil, err
	}
	f, err := descriptor.OpenLockedWithin(descriptor.Moment, parent, unix.O_RDONLY, how)
	return func() { f.Close() }, err
}

func open(path string) (*Dir, error) {
	f, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := CheckOwn(f); err != nil {
		f.Close()
		return nil, err
	}
	if err := lock(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("hold %s: %w", path, err)
	}
	return &Dir{Path: path, held: f}, nil
}

// lock takes the lock and makes sure that the directory still has its name.
func lock(f *os.File) error {
	got, err := descriptor.TryLock(f)
	if err == nil && !got {
		return ErrHeld
	}
	if got {
		got, err = descriptor.HasName(f)
	}
	if err == nil && !got {
		return fs.ErrNotExist
	}
	return err
}

// Release lets other processes work on the sandbox.
func (s *Dir) Release() { s.held.Close() }

// Remove removes the directory, and releases it.
func (s *Dir) Remove() error {
	return errors.Join(RemoveAll(s.Path), s.held.Close())
}

// Exchange gives two held directories each the name of the other, in one step. Afterwards s still
// stands for its name, with the content that the other one had. The error is an
// [errors.ErrUnsupported] if the file system has no such step.
func (s *Dir) Exchange(other *Dir) error {
	err := unix.Renameat2(unix.AT_FDCWD, s.Path, unix.AT_FDCWD, other.Path, unix.RENAME_EXCHANGE)
	if errors.Is(err, unix.EINVAL) {
		err = errors.Join(err, errors.ErrUnsupported)
	}
	if err != nil {
		return fmt.Errorf("exchange %s and %s: %w", s.Path, other.Path, err)
	}
	s.held, other.held = other.held, s.held
	return nil
}

// removeTries bounds the tries of RemoveAll. Another process makes a few files at most.
const removeTries = 100

// RemoveAll removes a path with all below it, also if another process makes files there
// meanwhile: for example to start a command in a sandbox that is being removed.
func RemoveAll(path string) (err error) {
	for range removeTries {
		if err = os.RemoveAll(path); !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
	}
	return err
}

// Renew empties the directory, for a new sandbox that this process makes.
func (s *Dir) Renew() error {
	entries, err := os.ReadDir(s.Path)
	errs := []error{err}
	for _, e := range entries {
		errs = append(errs, RemoveAll(filepath.Join(s.Path, e.Name())))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return s.Sign()
}

// CleanupTime bounds the removal of one sandbox. The removal goes on when the caller's
// context is cancelled.
const CleanupTime = 30 * time.Second

// removalName is a file in a sandbox's directory. It says that a removal has begun:
// the sandbox's processes may be dying, and its files are not needed any more.
const removalName = "removing"

// NoteRemoval notes that a removal begins, before anything is killed. Without the note the
// next "up" keeps the files: that does no harm.
func NoteRemoval(dir string) { _ = os.WriteFile(filepath.Join(dir, removalName), nil, 0o600) }

// RemovalBegun says that a removal of the sandbox with this directory has begun.
func RemovalBegun(dir string) bool { return Exists(filepath.Join(dir, removalName)) }
