package launcher

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// A sandbox's directory below <root>/@sandboxes stands for the sandbox: it is
// made before anything else of it and removed after everything else, and whoever
// works on the sandbox holds an flock(2) on it. All else that belongs to a
// sandbox has a name that follows from the id, so a directory that nobody
// holds is all that recovery needs to know.
//
// "@" can't be in a container's id, so these never meet containers, which
// libcontainer keeps in <root>/<id>.
type stateDir struct {
	path string
	held *os.File
}

// errHeld says that another process works on the sandbox.
var errHeld = errors.New("in use by another process")

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
	return openState(path)
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

// lockParent waits for the lock of the directory of all sandboxes, which is
// held for moments only.
func lockParent(parent string, how int) (unlock func(), err error) {
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

// remove ends the sandbox's existence and lets go.
func (s *stateDir) remove() error {
	return errors.Join(os.RemoveAll(s.path), s.held.Close())
}
