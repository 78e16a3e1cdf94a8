package review

import (
	"cmp"
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A draft is a file that gets its name when it is whole. A killed process leaves
// nothing of a draft where the file system supports O_TMPFILE (Linux 3.11).
type draft struct {
	*os.File
	dir  *os.File
	name string // a temporary name; empty with O_TMPFILE
}

func newDraft(dir string) (*draft, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(dir, unix.O_TMPFILE|unix.O_RDWR, 0o600)
	if err == nil {
		return &draft{File: f, dir: d}, nil
	}
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) {
		f, err = os.CreateTemp(dir, ".sandbox-runtime-save-*")
	}
	if err != nil {
		d.Close()
		return nil, err
	}
	return &draft{File: f, dir: d, name: f.Name()}, nil
}

// publish makes the file durable and gives it a name. It never replaces a file.
func (d *draft) publish(name string) error {
	if err := errors.Join(d.Chmod(0o666&^umask()), d.Sync()); err != nil {
		return err
	}
	from := cmp.Or(d.name, "/proc/self/fd/"+strconv.Itoa(int(d.Fd())))
	if err := unix.Linkat(unix.AT_FDCWD, from, unix.AT_FDCWD, name, unix.AT_SYMLINK_FOLLOW); err != nil {
		return &os.PathError{Op: "link", Path: name, Err: err}
	}
	if err := d.dir.Sync(); err != nil && !errors.Is(err, unix.EINVAL) { // not all file systems sync directories
		return errors.Join(err, os.Remove(name))
	}
	return nil
}

// umask is the mask of the program for the modes of new files. It can only be read with a change, so the kernel's
// text about the program is read instead (Linux 4.7).
func umask() os.FileMode {
	status, err := os.ReadFile("/proc/thread-self/status")
	_, rest, found := strings.Cut(string(status), "\nUmask:\t")
	digits, _, _ := strings.Cut(rest, "\n")
	mask, parsed := strconv.ParseUint(digits, 8, 9)
	if err != nil || !found || parsed != nil {
		return 0o077
	}
	return os.FileMode(mask)
}

// Close removes the temporary name.
func (d *draft) Close() error {
	err := errors.Join(d.File.Close(), d.dir.Close())
	if d.name != "" {
		err = errors.Join(err, os.Remove(d.name))
	}
	return err
}
