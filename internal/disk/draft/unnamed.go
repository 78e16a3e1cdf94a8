package draft

import (
	"cmp"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// An Unnamed is a new file that has no name yet. A killed process leaves nothing of the file (O_TMPFILE, Linux 3.11),
// where the file system has such files. The caller must close the file.
type Unnamed struct {
	*os.File
	temporary string // the path of the file in a file system without such files
}

// Create makes a file in a directory, with a mode less the umask. The prefix begins the name of the file if it has to
// have one.
func Create(dir, prefix string, mode os.FileMode) (*Unnamed, error) {
	f, err := os.OpenFile(dir, unix.O_TMPFILE|os.O_RDWR, mode)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) {
		return createNamed(dir, prefix, mode)
	}
	return &Unnamed{File: f}, err
}

func createNamed(dir, prefix string, mode os.FileMode) (*Unnamed, error) {
	path := filepath.Join(dir, prefix+rand.Text())
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, mode)
	return &Unnamed{f, path}, err
}

// Link gives the file a name. It replaces no file.
func (u *Unnamed) Link(path string) error {
	from := cmp.Or(u.temporary, "/proc/self/fd/"+strconv.Itoa(int(u.Fd())))
	if err := unix.Linkat(unix.AT_FDCWD, from, unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW); err != nil {
		return &os.PathError{Op: "link", Path: path, Err: err}
	}
	return nil
}

// LinkDurably is Link, and has the file on disk when it returns.
func (u *Unnamed) LinkDurably(path string) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := u.Sync(); err != nil {
		return err
	}
	if err := u.Link(path); err != nil {
		return err
	}
	if err := dir.Sync(); err != nil && !errors.Is(err, unix.EINVAL) { // not all file systems sync directories
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// Replace is Link, and replaces a file. For a moment there can be no file with the name: linkat(2) replaces none.
func (u *Unnamed) Replace(path string) error {
	if u.temporary != "" {
		err := os.Rename(u.temporary, path)
		if err == nil {
			u.temporary = ""
		}
		return err
	}
	for {
		err := u.Link(path)
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
		if err := unix.Unlink(path); err != nil && !errors.Is(err, unix.ENOENT) {
			return &os.PathError{Op: "remove", Path: path, Err: err}
		}
	}
}

// Close removes the temporary name, and closes the file.
func (u *Unnamed) Close() error {
	err := u.File.Close()
	if u.temporary != "" {
		err = errors.Join(err, os.Remove(u.temporary))
	}
	return err
}
