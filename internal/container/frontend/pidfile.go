package frontend

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/draft"
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
	if err := writeWhole(path, strconv.Itoa(pid)); err != nil {
		return fmt.Errorf("pid file: %w", err)
	}
	return nil
}

func writeWhole(path, text string) error {
	f, err := draft.Create(filepath.Dir(path), "."+filepath.Base(path)+".", pidFileMode)
	if err != nil {
		return &fs.PathError{Op: "create", Path: path, Err: errors.Unwrap(err)}
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Chmod(pidFileMode)); err == nil {
		err = f.Replace(path)
	}
	return errors.Join(err, f.Close())
}
