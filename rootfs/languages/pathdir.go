package languages

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// A pathDir is a directory of PATH. It is open if it exists: some thirty looks at its programs take half
// the time then.
type pathDir struct {
	path string
	fd   int // -1 if it does not exist
	// runs is the value of programs, and real is the path without symbolic links. Each is empty until it is needed.
	runs, real string
	// remembers says that names which are missing now are missing until the time of the directory changes. The
	// fields below have a value only then.
	remembers bool
	id        dirID
	changed   unix.StatxTimestamp
	lacks     map[string]bool // names that were missing in an earlier search
	missed    []string        // other names that are missing in this search
	short     *shortage       // of the search
}

// openDirs opens the absolute directories of a PATH, each once. The caller must close them.
func openDirs(pathList string, absences *Absences, short *shortage) (dirs []*pathDir) {
	seen := map[string]bool{}
	for _, path := range filepath.SplitList(pathList) {
		if path = filepath.Clean(path); !filepath.IsAbs(path) || seen[path] {
			continue
		}
		seen[path] = true
		fd, err := short.open(path, unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			fd = -1
		}
		dir := &pathDir{path: path, fd: fd, short: short}
		absences.recall(dir)
		dirs = append(dirs, dir)
	}
	return dirs
}

func (d *pathDir) exists() bool { return d.fd >= 0 }

func (d *pathDir) close(absences *Absences) {
	if d.exists() {
		absences.learn(d)
		_ = unix.Close(d.fd) // nothing was written
	}
}

// resolve returns the path of a file in the directory, without symbolic links.
func (d *pathDir) resolve(name string) (path string, err error) {
	if d.real == "" {
		d.real, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", d.fd))
		if err != nil { // of a path that is too long; the number would be another one each time
			return "", fmt.Errorf("resolve %s: %w", d.path, errors.Unwrap(err))
		}
	}
	path = filepath.Join(d.real, name)
	if _, err := unix.Readlinkat(d.fd, name, make([]byte, 1)); err == unix.EINVAL { // it is no link
		return path, nil
	}
	return filepath.EvalSymlinks(path)
}

// hasProgram says whether the directory has an executable file of this name.
func (d *pathDir) hasProgram(name string) bool {
	if !d.exists() || d.lacks[name] || slices.Contains(d.missed, name) {
		return false
	}
	var st unix.Stat_t
	err := unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == unix.ENOENT && d.remembers {
		d.missed = append(d.missed, name)
	}
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK { // its target can come later, so it is no absence
		err = unix.Fstatat(d.fd, name, &st, 0)
	}
	return err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&0o111 != 0
}
