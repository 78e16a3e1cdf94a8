package launcher

import (
	"context"
	"errors"
	"fmt"
	"io"
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

// openData opens a directory of the data directory, and makes both where they
// are missing.
func openData(data, name string) (*os.File, error) {
	if err := os.MkdirAll(data, 0o700); err != nil {
		return nil, fmt.Errorf("make the data directory, which --data names: %w", err)
	}
	top, err := os.OpenFile(data, unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer top.Close()
	if err := checkOwn(top); err != nil {
		return nil, err
	}
	dir, _, err := openBelow(top, name)
	return dir, err
}

// openBelow opens a directory in one that is held, and tells whether it has made
// it. Nobody can have put another in its place: who may write to the parent is
// root or this user, and no link is followed.
func openBelow(parent *os.File, name string) (dir *os.File, made bool, err error) {
	path := filepath.Join(parent.Name(), name)
	err = unix.Mkdirat(int(parent.Fd()), name, 0o700)
	if made = err == nil; err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, false, fmt.Errorf("mkdir %s: %w", path, err)
	}
	fd, err := unix.Openat(int(parent.Fd()), name, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, false, fmt.Errorf("open %s: %w", path, err)
	}
	dir = os.NewFile(uintptr(fd), path)
	if err := checkOwn(dir); err != nil {
		return nil, false, errors.Join(err, dir.Close())
	}
	return dir, made, nil
}

// An untrustedError says that others may change what a launcher would rely on.
type untrustedError struct{ path, why string }

func (e *untrustedError) Error() string {
	return fmt.Sprintf("%s %s, and others could change it: chown it to root and chmod go-w, or use another directory", e.path, e.why)
}

// checkOwn refuses a file that anybody but root and this user may change. The
// bits of an access control list's mask are those of the group.
func checkOwn(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("stat %s: %w", f.Name(), err)
	}
	switch {
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return &untrustedError{f.Name(), fmt.Sprintf("belongs to user %d", st.Uid)}
	case st.Mode&0o022 != 0:
		return &untrustedError{f.Name(), fmt.Sprintf("has mode %#o", st.Mode&0o7777)}
	}
	return nil
}

// readOwn reads a file that nobody but root and this user may have written.
func readOwn(path string) ([]byte, error) {
	f, err := os.OpenFile(path, unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := checkOwn(f); err != nil {
		return nil, err
	}
	return io.ReadAll(f)
}

// replaceFile writes a file of which readers see what was there before or all that
// is new.
func replaceFile(path string, content []byte) error {
	draft := path + ".new"
	if err := os.WriteFile(draft, content, 0o600); err != nil {
		return err
	}
	return os.Rename(draft, path)
}

// cleanupTime bounds the removal of one sandbox, which goes on when the
// caller's context is cancelled.
const cleanupTime = 30 * time.Second

// checkState is checkRoot, by the directory of all sandboxes.
func checkState(sandboxes string) error {
	if err := checkOwnDir(filepath.Dir(sandboxes), 0); err != nil {
		return err
	}
	return checkOwnDir(sandboxes, unix.O_NOFOLLOW)
}

func checkOwnDir(path string, flags int) error {
	f, err := os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY|flags, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return checkOwn(f)
}

// removalName is a file in a sandbox's directory. It says that a removal has begun:
// the sandbox's processes may be dying, and its files are not needed any more.
const removalName = "removing"

// noteRemoval notes that a removal begins, before anything is killed. Without the note the
// next "up" keeps the files: that does no harm.
func noteRemoval(dir string) { _ = os.WriteFile(filepath.Join(dir, removalName), nil, 0o600) }

func removalBegun(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, removalName))
	return err == nil
}
