package statedir

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// OpenData opens a directory of the data directory, and makes both where they
// are missing.
func OpenData(data, name string) (*os.File, error) {
	if err := os.MkdirAll(data, 0o700); err != nil {
		return nil, fmt.Errorf("make the data directory, which --data names: %w", err)
	}
	top, err := os.OpenFile(data, unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer top.Close()
	if err := CheckOwn(top); err != nil {
		return nil, err
	}
	dir, _, err := OpenBelow(top, name)
	return dir, err
}

// OpenBelow opens a directory in one that is held, and tells whether it has made
// it. Nobody can have put another in its place: who may write to the parent is
// root or this user, and no link is followed.
func OpenBelow(parent *os.File, name string) (dir *os.File, made bool, err error) {
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
	if err := CheckOwn(dir); err != nil {
		return nil, false, errors.Join(err, dir.Close())
	}
	return dir, made, nil
}

// An untrustedError says that others may change what a launcher would rely on.
type UntrustedError struct{ path, why string }

func (e *UntrustedError) Error() string {
	return fmt.Sprintf("%s %s, and others could change it: chown it to root and chmod go-w, or use another directory", e.path, e.why)
}

// CheckOwn refuses a file that anybody but root and this user may change. The
// bits of an access control list's mask are those of the group.
func CheckOwn(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("stat %s: %w", f.Name(), err)
	}
	switch {
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return &UntrustedError{f.Name(), fmt.Sprintf("belongs to user %d", st.Uid)}
	case st.Mode&0o022 != 0:
		return &UntrustedError{f.Name(), fmt.Sprintf("has mode %#o", st.Mode&0o7777)}
	}
	return nil
}

// ReadOwn reads a file that nobody but root and this user may have written.
func ReadOwn(path string) ([]byte, error) {
	f, err := os.OpenFile(path, unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := CheckOwn(f); err != nil {
		return nil, err
	}
	return io.ReadAll(f)
}

// Replace writes a file of which readers see what was there before or all that
// is new.
func Replace(path string, content []byte) error {
	draft := path + ".new"
	if err := os.WriteFile(draft, content, 0o600); err != nil {
		return err
	}
	return os.Rename(draft, path)
}

// Check refuses a directory of all sandboxes that anybody but root and this user may
// change, and a state root above it. Missing ones are no error.
func Check(sandboxes string) error {
	if err := CheckOwnDir(filepath.Dir(sandboxes), 0); err != nil {
		return err
	}
	return CheckOwnDir(sandboxes, unix.O_NOFOLLOW)
}

func CheckOwnDir(path string, flags int) error {
	f, err := os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY|flags, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return CheckOwn(f)
}
