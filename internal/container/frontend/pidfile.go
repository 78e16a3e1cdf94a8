package frontend

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// pidFileMode lets every user read it, with any umask.
const pidFileMode = 0o644

// WritePidFile makes the file appear with its content in it. Killed half way it
// leaves nothing beside, where the file system can do that: nobody would know to
// remove it.
func WritePidFile(path string, pid int) error {
	if info, err := os.Lstat(path); err == nil && info.Mode().Type()&^fs.ModeSymlink != 0 {
		return fmt.Errorf("pid file: %s is there and no regular file", path) // /dev/null would be replaced
	}
	text := strconv.Itoa(pid)
	err := linkFile(path, text)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = renameFile(path, text)
	}
	if err != nil {
		return fmt.Errorf("pid file: %w", err)
	}
	return nil
}

// linkFile writes the file before it gives it a name (O_TMPFILE, Linux 3.11).
func linkFile(path, text string) error {
	f, err := os.OpenFile(filepath.Dir(path), unix.O_TMPFILE|unix.O_WRONLY, pidFileMode)
	if err != nil {
		return &os.PathError{Op: "create", Path: path, Err: errors.Unwrap(err)}
	}
	defer f.Close()
	_, err = f.WriteString(text)
	if err := errors.Join(err, f.Chmod(pidFileMode)); err != nil {
		return err
	}
	unnamed := "/proc/self/fd/" + strconv.Itoa(int(f.Fd()))
	for {
		err := unix.Linkat(unix.AT_FDCWD, unnamed, unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
		if errors.Is(err, unix.EEXIST) { // from an earlier container
			if err = unix.Unlink(path); err == nil || errors.Is(err, unix.ENOENT) {
				continue
			}
		}
		if err != nil {
			return &os.PathError{Op: "link", Path: path, Err: err}
		}
		return nil
	}
}

// renameFile writes the file under another name first.
func renameFile(path, text string) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	err = errors.Join(err, f.Chmod(pidFileMode), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
