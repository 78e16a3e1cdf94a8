package launcher

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

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
	path := filepath.Join(parent, id)
	// Between mkdir and flock somebody may take the directory for one that
	// was left behind, and remove it: then it is made again.
	for try := range 100 {
		err := os.Mkdir(path, 0o700)
		if err != nil && (try == 0 || !errors.Is(err, fs.ErrExist)) {
			return nil, err
		}
		if err == nil {
			s, err := holdState(parent, id)
			if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errHeld) {
				return s, err
			}
		}
		time.Sleep(time.Millisecond)
	}
	return nil, fmt.Errorf("make %s: it vanishes as soon as it is made", path)
}

// holdState takes hold of the directory of a sandbox that exists.
func holdState(parent, id string) (*stateDir, error) {
	path := filepath.Join(parent, id)
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
