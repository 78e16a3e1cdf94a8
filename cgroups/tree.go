package cgroups

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"golang.org/x/sys/unix"
)

// tree is one mounted cgroup hierarchy.
type tree struct {
	dir         string   // mount point
	v2          bool     // cgroup2, not cgroup
	controllers []string // v1: mounted here; v2: offered by its root
}

// open returns the directory of the group at path, "/" being the mount point.
// Below that it follows no link and crosses no mount (openat2(2) with
// RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS and RESOLVE_NO_XDEV, Linux 5.6).
func (t tree) open(path string) (*os.File, error) {
	root, err := os.Open(t.dir)
	if err != nil || path == "/" {
		return root, err
	}
	defer root.Close()
	return openBelow(root, strings.TrimPrefix(path, "/"))
}

// withDir calls f with the directory of a group, and closes the directory afterwards.
func (t tree) withDir(group string, f func(dir *os.File) error) error {
	dir, err := t.open(group)
	if err != nil {
		return err
	}
	defer dir.Close()
	return f(dir)
}

// path names the directory of a group for the calls that go by name.
func (t tree) path(group string) string {
	return filepath.Join(t.dir, group)
}

// eachGroup calls visit with the group at path and then with every group below it,
// parents first. A group that vanishes on the way is left out; one that is
// absent from the start is fs.ErrNotExist. The directory is closed after visit.
func (t tree) eachGroup(path string, visit func(dir *os.File) error) error {
	return t.withDir(path, func(dir *os.File) error { return walk(dir, visit) })
}

func walk(dir *os.File, visit func(dir *os.File) error) error {
	if err := visit(dir); err != nil && !isGone(err) {
		return err
	}
	names, err := children(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		child, err := openBelow(dir, name)
		if isGone(err) {
			continue
		}
		if err != nil {
			return err
		}
		err = walk(child, visit)
		child.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// children lists the groups directly below dir. In kernfs a directory's link
// count is 2 and the number of its directories (fs/kernfs/inode.c
// set_inode_attr, kernfs_refresh_inode), which spares a leaf the listing.
func children(dir *os.File) ([]string, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return nil, &fs.PathError{Op: "fstat", Path: dir.Name(), Err: err}
	}
	if st.Nlink == 2 {
		return nil, nil
	}
	entries, err := dir.ReadDir(-1)
	if err != nil && !isGone(err) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// openBelow opens the directory rel beneath dir; see tree.open.
func openBelow(dir *os.File, rel string) (*os.File, error) {
	name := filepath.Join(dir.Name(), rel)
	fd, err := descriptor.Open(int(dir.Fd()), rel, descriptor.OneMount, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, &fs.PathError{Op: "openat2", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// readFile returns the content of one of a group's files.
func readFile(dir *os.File, name string) (string, error) {
	f, err := openFile(dir, name, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	return string(data), err
}

// writeFile writes value into one of a group's files, in one write(2).
func writeFile(dir *os.File, name, value string) error {
	fd, err := openAt(dir, name, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = call(dir, "write", name, func(int) (int, error) { return unix.Write(fd, []byte(value)) })
	return err
}

func openFile(dir *os.File, name string, flags int) (*os.File, error) {
	fd, err := openAt(dir, name, flags)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), filepath.Join(dir.Name(), name)), nil
}

// openAt is openFile without the *os.File.
func openAt(dir *os.File, name string, flags int) (int, error) {
	return call(dir, "open", name, func(fd int) (int, error) {
		return unix.Openat(fd, name, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	})
}

// call makes a system call on one of a group's files, given the directory's
// descriptor. Its error names the operation and the file.
func call(dir *os.File, op, name string, f func(fd int) (int, error)) (int, error) {
	n, err := descriptor.Retry(func() (int, error) { return f(int(dir.Fd())) })
	if err != nil {
		err = &fs.PathError{Op: op, Path: filepath.Join(dir.Name(), name), Err: err}
	}
	return n, err
}

// change is call for a system call that returns an error alone.
func change(dir *os.File, op, name string, f func(fd int) error) error {
	_, err := call(dir, op, name, func(fd int) (int, error) { return 0, f(fd) })
	return err
}

// isGone tells the errors of a group, or of one of its files, that is not there:
// ENOENT by name, ENODEV through a descriptor that outlived it.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}

// unlessGone is err, or nil if the group or file is not there.
func unlessGone(err error) error {
	if isGone(err) {
		return nil
	}
	return err
}

// ignore is err, or nil if it is one of the expected ones.
func ignore(err error, expected ...error) error {
	if slices.ContainsFunc(expected, func(e error) bool { return errors.Is(err, e) }) {
		return nil
	}
	return err
}
