package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// Read returns the content of a configuration file; nothing if it is missing.
func Read(file string) ([]byte, error) {
	info, err := os.Stat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", file)
	}
	return os.ReadFile(file)
}

// Edit replaces the content of a file by the result of change, and returns both. A reader
// of the file sees the one or the other. It keeps mode, owner and extended attributes, and
// a symlink stays one. Content that becomes empty removes the file, unless a symlink leads
// to the file. An error leaves everything as it was; two Edits at a time come one after the
// other.
func Edit(file string, change func([]byte) ([]byte, error)) (before, after []byte, err error) {
	target, err := targetOf(file)
	if err != nil {
		return nil, nil, err
	}
	dir, err := lockDir(filepath.Dir(target))
	if errors.Is(err, fs.ErrNotExist) {
		// Nothing to change, or the folder is needed now.
		after, err = change(nil)
		if err != nil || len(after) == 0 {
			return nil, after, err
		}
		if err = os.MkdirAll(filepath.Dir(target), 0o755); err == nil {
			dir, err = lockDir(filepath.Dir(target))
		}
	}
	if err != nil {
		return nil, nil, err
	}
	defer dir.Close()
	if err := removeDrafts(target); err != nil {
		return nil, nil, err
	}
	if before, err = Read(target); err != nil {
		return nil, nil, err
	}
	if after, err = change(bytes.Clone(before)); err != nil || bytes.Equal(before, after) {
		return before, after, err
	}
	if len(after) == 0 && target != file && bytes.HasPrefix(before, []byte("{")) {
		after = []byte("{}\n") // dockerd 20.10 does not start with an empty file
	}
	if err := put(target, before, after, target != file); err != nil {
		return nil, nil, err
	}
	return before, after, dir.Sync()
}

// targetOf is the file behind symlinks, which may not be there yet unless a
// symlink leads to it.
func targetOf(file string) (string, error) {
	file, err := filepath.Abs(file)
	if err != nil {
		return "", err
	}
	target, err := filepath.EvalSymlinks(file)
	if err == nil {
		return target, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		// Not all of its errors name the file.
		return "", fmt.Errorf("follow %s: %w", file, err)
	}
	if to, lerr := os.Readlink(file); lerr == nil {
		return "", fmt.Errorf("%s is a symlink to %s, which is not there", file, to)
	}
	return file, nil
}

func lockDir(path string) (*os.File, error) {
	return descriptor.OpenLockedWithin(descriptor.Moment, path, unix.O_RDONLY, descriptor.Exclusive)
}

// put renames a new file over the old one, or removes that.
func put(target string, before, after []byte, linked bool) (err error) {
	temp, err := os.CreateTemp(filepath.Dir(target), draftName(target)+"*")
	if err != nil {
		return fmt.Errorf("replace %s: %w", target, err)
	}
	defer func() {
		temp.Close()
		if err != nil {
			os.Remove(temp.Name())
		}
	}()
	if err := likeOld(temp, target); err != nil {
		return fmt.Errorf("replace %s: %w", target, err)
	}
	if _, err := temp.Write(after); err != nil {
		return err
	}
	if err := temp.Sync(); err != nil {
		return err
	}
	now, err := Read(target)
	if err != nil {
		return err
	}
	if !bytes.Equal(before, now) {
		return fmt.Errorf("%s was changed by somebody else meanwhile: try again", target)
	}
	if len(after) == 0 && !linked {
		return errors.Join(os.Remove(target), os.Remove(temp.Name()))
	}
	return os.Rename(temp.Name(), target)
}

// draftName begins the names of new files in the place of the target.
func draftName(target string) string { return "." + filepath.Base(target) + ".sandbox-runtime-" }

// removeDrafts removes the new files that killed processes have left.
func removeDrafts(target string) error {
	dir := filepath.Dir(target)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), draftName(target)) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// likeOld gives the new file the owner, mode and extended attributes of the
// old one, in this order: a change of owner may clear the others.
func likeOld(temp *os.File, target string) error {
	info, err := os.Stat(target)
	if errors.Is(err, fs.ErrNotExist) {
		return temp.Chmod(0o644)
	}
	if err != nil {
		return err
	}
	stat := info.Sys().(*syscall.Stat_t)
	if err := temp.Chown(int(stat.Uid), int(stat.Gid)); err != nil {
		return err
	}
	if err := temp.Chmod(info.Mode()); err != nil {
		return err
	}
	return copyAttributes(temp, target)
}

// copyAttributes copies access lists, SELinux labels and the like. The kernel
// sets some by itself and refuses to have them set: those are skipped if the
// value is right already.
func copyAttributes(temp *os.File, target string) error {
	names, err := attributes(target)
	if err != nil {
		return err
	}
	fd := int(temp.Fd())
	for _, name := range names {
		value, err := attribute(func(to []byte) (int, error) { return unix.Getxattr(target, name, to) })
		if err != nil {
			return fmt.Errorf("read attribute %s: %w", name, err)
		}
		is, err := attribute(func(to []byte) (int, error) { return unix.Fgetxattr(fd, name, to) })
		if err == nil && bytes.Equal(is, value) {
			continue
		}
		if err := unix.Fsetxattr(fd, name, value, 0); err != nil {
			return fmt.Errorf("set attribute %s: %w", name, err)
		}
	}
	return nil
}

func attributes(path string) ([]string, error) {
	list, err := attribute(func(to []byte) (int, error) { return unix.Listxattr(path, to) })
	if err == unix.ENOTSUP {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list attributes: %w", err)
	}
	return strings.FieldsFunc(string(list), func(r rune) bool { return r == 0 }), nil
}

// attribute reads into a buffer that holds the largest there can be (xattr(7),
// "limits").
func attribute(read func([]byte) (int, error)) ([]byte, error) {
	buffer := make([]byte, 64<<10)
	n, err := read(buffer)
	if err != nil {
		return nil, err
	}
	return buffer[:n], nil
}
