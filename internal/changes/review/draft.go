package review

import (
	"cmp"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// A draft is a file that gets its name when it is whole. A killed process leaves
// nothing of a draft where the file system supports O_TMPFILE (Linux 3.11). The umask decides about its mode.
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
	f, err := os.OpenFile(dir, unix.O_TMPFILE|unix.O_RDWR, 0o666)
	if err == nil {
		return &draft{File: f, dir: d}, nil
	}
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) {
		f, err = os.OpenFile(filepath.Join(dir, ".sandbox-runtime-save-"+rand.Text()), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
	}
	if err != nil {
		d.Close()
		return nil, err
	}
	return &draft{File: f, dir: d, name: f.Name()}, nil
}

// publish makes the file durable and gives it a name. It never replaces a file.
func (d *draft) publish(name string) error {
	if err := d.Sync(); err != nil {
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

// Close removes the temporary name.
func (d *draft) Close() error {
	err := errors.Join(d.File.Close(), d.dir.Close())
	if d.name != "" {
		err = errors.Join(err, os.Remove(d.name))
	}
	return err
}
