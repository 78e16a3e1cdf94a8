package files

import (
	"cmp"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// tempPrefix begins the names of files that are being written.
const tempPrefix = ".sandbox-files-"

// A draft is a new file without its name. Where the file system can do so, the draft has no name
// at all: the kernel frees the draft when its server is killed (open(2) O_TMPFILE, Linux 3.11;
// overlayfs has O_TMPFILE since Linux 6.1).
type draft struct {
	tree      Tree
	dir, base string
	file      *os.File
	// temp is the draft's present name. Empty: the draft has none.
	temp string
}

// newDraft begins a file that becomes base in the directory dir. An empty dir is the tree itself.
func newDraft(tree Tree, dir, base string) (*draft, error) {
	d := &draft{tree: tree, dir: cmp.Or(dir, "."), base: base}
	var err error
	if d.file, err = tree.OpenFile(d.dir, os.O_WRONLY|unix.O_TMPFILE, 0o600); err == nil {
		return d, nil
	}
	d.temp = d.temporary()
	if d.file, err = tree.OpenFile(d.temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
		return nil, err
	}
	return d, nil
}

func (d *draft) temporary() string {
	return d.entryPath(tempPrefix + strconv.FormatUint(rand.Uint64(), 36))
}

// entryPath is the path of an entry of the directory. The path is not cleaned: the meaning of ".." depends on
// links.
func (d *draft) entryPath(entry string) string { return strings.TrimSuffix(d.dir, "/") + "/" + entry }

// place gives the draft its name. A file with this name is replaced.
func (d *draft) place() error {
	if d.temp == "" {
		err := d.link(d.base)
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
		temp := d.temporary() // linkat(2) replaces no file, rename(2) does
		if err := d.link(path.Base(temp)); err != nil {
			return err
		}
		d.temp = temp
	}
	if err := d.tree.Rename(d.temp, d.entryPath(d.base)); err != nil {
		return err
	}
	d.temp = ""
	return nil
}

// link gives a file without a name its first name: open(2), O_TMPFILE.
func (d *draft) link(name string) error {
	dir, err := d.tree.OpenFile(d.dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrPermission) { // a directory that its user may not list
		dir, err = d.tree.OpenFile(d.dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	from := "/proc/self/fd/" + strconv.Itoa(int(d.file.Fd()))
	return unix.Linkat(unix.AT_FDCWD, from, int(dir.Fd()), name, unix.AT_SYMLINK_FOLLOW)
}

// close ends the draft. A draft that was not placed leaves no file.
func (d *draft) close() error {
	err := d.file.Close()
	if d.temp != "" {
		err = errors.Join(err, d.tree.Remove(d.temp))
	}
	return err
}
