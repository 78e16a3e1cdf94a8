package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Self is the absolute path of the running program, without symlinks.
func Self() (string, error) {
	path, err := os.Executable()
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("this binary was replaced or removed since it was started: %w", err)
	}
	if err == nil && !utf8.ValidString(path) {
		err = fmt.Errorf("%q is not UTF-8, and neither JSON nor TOML can hold it: install the binary elsewhere", path)
	}
	return path, err
}

// Lasting refuses a path that will not be there after a reboot, or after
// somebody has tidied up: an engine that finds its runtime missing starts no
// container.
func Lasting(path string) error {
	for _, dir := range []string{"/tmp", "/var/tmp", "/run", "/var/run", "/dev", "/proc"} {
		if strings.HasPrefix(path, dir+"/") {
			return fmt.Errorf("%s lies in %s, which does not last. Install the binary first, and register that:\n"+
				"    install -m 755 %[1]s /usr/local/bin/%[3]s", path, dir, programName)
		}
	}
	return nil
}

// Exposed names the users other than root that can change the program at the path, which
// root will run; "" if there are none.
func Exposed(path string) (string, error) {
	for at := path; ; at = filepath.Dir(at) {
		var stat unix.Stat_t
		if err := unix.Lstat(at, &stat); err != nil {
			return "", &os.PathError{Op: "stat", Path: at, Err: err}
		}
		sticky := stat.Mode&unix.S_IFMT == unix.S_IFDIR && stat.Mode&unix.S_ISVTX != 0 // each file in it is its owner's
		switch {
		case stat.Uid != 0:
			return fmt.Sprintf("uid %d, the owner of %s", stat.Uid, at), nil
		case stat.Mode&0o002 != 0 && !sticky:
			return fmt.Sprintf("everybody, since %s is writable by all", at), nil
		case stat.Mode&0o020 != 0 && stat.Gid != 0 && !sticky:
			return fmt.Sprintf("gid %d, which may write to %s", stat.Gid, at), nil
		}
		if at == "/" {
			return "", nil
		}
	}
}
