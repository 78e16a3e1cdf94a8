package statedir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/draft"
)

// OpenData opens a directory of the data directory or of the state root, and makes both where they
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

// OpenBelow opens a directory in a held one, and makes it if it is missing. No link is
// followed, and only root and this user may write to the parent: no other user can have put
// another directory in its place.
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

// An UntrustedError says that other users may change a file that a launcher relies on.
type UntrustedError struct{ path, why string }

// Error names the file, the reason and the way out.
func (e *UntrustedError) Error() string {
	return fmt.Sprintf("%s %s, and others could change it: chown it to root and chmod go-w, or use another directory", e.path, e.why)
}

// CheckOwn refuses a file that other users than root and this user may change. The mask of
// an access control list shows in the bits of the group.
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

// ReadOwn reads a file, and refuses a file that other users than root and this user may change.
// It refuses a named pipe, a device and a directory: a read of them can wait for ever.
func ReadOwn(path string) ([]byte, error) {
	f, err := os.OpenFile(path, unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := CheckOwn(f); err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("read %s: it is not a regular file; remove the sandbox with down", path)
	}
	return io.ReadAll(f)
}

// ReplaceJSON writes a value to a file as JSON. Readers see the old content or all of the new
// content.
func ReplaceJSON(path string, value any) error {
	content, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return draft.File{Path: path}.WriteBytes(content)
}

// ErrRelease says that a file has a version of a newer release.
var ErrRelease = errors.New("is of another release of this program")

// Decode reads JSON with a version up to newest. The version comes first: another release may have other types.
func Decode(content []byte, newest int, value any) error {
	var v struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(content, &v); err != nil {
		return err
	}
	if v.Version > newest {
		return fmt.Errorf("version %d %w", v.Version, ErrRelease)
	}
	return json.Unmarshal(content, value)
}

// RemoveJSON removes a file of [ReplaceJSON], and the draft that a killed process has left. Both can be missing.
func RemoveJSON(path string) error {
	for _, file := range []string{path + draft.Suffix, path} {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Exists says that a path leads to an entry. It does not follow a link at the end.
func Exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// Check refuses a directory of all sandboxes, or a state root above it, that other users
// than root and this user may change. A missing directory is no error.
func Check(sandboxes string) error {
	if err := CheckOwnDir(filepath.Dir(sandboxes), 0); err != nil {
		return err
	}
	return CheckOwnDir(sandboxes, unix.O_NOFOLLOW)
}

// CheckOwnDir is [CheckOwn] for a directory, which flags open. A missing one is no error.
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
