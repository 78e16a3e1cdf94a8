package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
)

// A sandbox's directory below <root>/@sandboxes stands for the sandbox: it is
// made before anything else of it and removed after everything else, and whoever
// makes, changes or removes the sandbox holds an flock(2) on it meanwhile. All
// else that belongs to a sandbox has a name that follows from the id, so a
// directory that nobody holds, of a sandbox that is not up, is all that recovery
// needs to know.
//
// "@" can't be in a container's id, so these never meet containers, which
// libcontainer keeps in <root>/<id>.
type stateDir struct {
	path string
	held *os.File
}

// errHeld says that somebody else works on the sandbox.
var errHeld = launch.ErrBusy

// makeState makes the directory of a sandbox that does not exist yet, held.
func makeState(parent, id string) (*stateDir, error) {
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return nil, err
	}
	// Shared with other makers, not with who looks for what was left behind:
	// between mkdir and flock the new directory looks just like that.
	unlock, err := lockParent(parent, unix.LOCK_SH)
	if err != nil {
		return nil, err
	}
	defer unlock()
	path := filepath.Join(parent, id)
	if err := os.Mkdir(path, 0o700); err != nil {
		return nil, err
	}
	s, err := openState(path)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(path))
	}
	if err := signOwner(path); err != nil {
		return nil, errors.Join(err, s.remove())
	}
	return s, nil
}

// holdState takes hold of the directory of a sandbox that exists.
func holdState(parent, id string) (*stateDir, error) {
	unlock, err := lockParent(parent, unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return openState(filepath.Join(parent, id))
}

// awaitState is holdState, and waits for whoever works on the sandbox now. The
// error is fs.ErrNotExist if that one has removed it.
func awaitState(ctx context.Context, parent, id string) (*stateDir, error) {
	ctx, cancel := context.WithTimeout(ctx, cleanupTime)
	defer cancel()
	for {
		s, err := holdState(parent, id)
		if !errors.Is(err, errHeld) {
			return s, err
		}
		if pause(ctx, time.Millisecond) != nil {
			return nil, err
		}
	}
}

// orphanPatience is how long a directory may stay held whose owner is dead: by a
// process that it was about to start, which has all its descriptors until it
// executes.
const orphanPatience = 2 * time.Second

// holdOrphan is holdState, and waits for a directory that only seems to be in
// use because its owner was killed a moment ago.
func holdOrphan(parent, id string) (*stateDir, error) {
	for end := time.Now().Add(orphanPatience); ; time.Sleep(time.Millisecond) {
		s, err := holdState(parent, id)
		if !errors.Is(err, errHeld) || time.Now().After(end) || ownerLives(filepath.Join(parent, id)) {
			return s, err
		}
	}
}

// pause returns nil after d, or ctx's error as soon as that ends.
func pause(ctx context.Context, d time.Duration) error {
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

func signOwner(path string) error {
	self, err := identify(os.Getpid())
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(path, ownerName), []byte(self.String()), 0o600)
}

// ownerLives is true where that can't be told.
func ownerLives(path string) bool {
	text, err := os.ReadFile(filepath.Join(path, ownerName))
	if err != nil {
		return true
	}
	owner, err := parseIdentity(string(text))
	return err != nil || owner.lives()
}

// lockParent waits for the lock of the directory of all sandboxes, which is
// held for moments only.
func lockParent(parent string, how int) (unlock func(), err error) {
	if err := checkState(parent); err != nil {
		return nil, err
	}
	f, err := os.Open(parent)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", parent, err)
	}
	return func() { f.Close() }, nil
}

func openState(path string) (*stateDir, error) {
	f, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := checkOwn(f); err != nil {
		f.Close()
		return nil, err
	}
	if err := lock(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("hold %s: %w", path, err)
	}
	return &stateDir{path: path, held: f}, nil
}

// lock takes the lock and makes sure that the directory still has its name.
func lock(f *os.File) error {
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return errHeld
		}
		return err
	}
	mine, err := f.Stat()
	if err != nil {
		return err
	}
	named, err := os.Lstat(f.Name())
	if err != nil {
		return err
	}
	if !os.SameFile(mine, named) {
		return fs.ErrNotExist
	}
	return nil
}

// release lets others work on the sandbox.
func (s *stateDir) release() { s.held.Close() }

// remove ends the sandbox's existence and lets go.
func (s *stateDir) remove() error {
	return errors.Join(os.RemoveAll(s.path), s.held.Close())
}

// renew turns the directory into that of a sandbox that this process is making.
func (s *stateDir) renew() error {
	entries, err := os.ReadDir(s.path)
	errs := []error{err}
	for _, e := range entries {
		errs = append(errs, os.RemoveAll(filepath.Join(s.path, e.Name())))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return signOwner(s.path)
}
