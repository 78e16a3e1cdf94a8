package descriptor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Glob returns the paths below dir that match a pattern of [filepath.Match], sorted in each directory. dir itself is no
// pattern. A file matches nothing if it is missing or if the process may not see it. After any other error the answer
// is not known, and Glob returns the error. It is not for paths that a sandbox chooses.
// [filepath.Glob] hides the errors that leave the answer open, such as that of too many open files.
func Glob(dir, pattern string) ([]string, error) {
	found := []string{dir}
	for _, part := range strings.Split(pattern, "/") {
		var next []string
		for _, at := range found {
			names, err := globMatches(at, part)
			if err != nil {
				return nil, err
			}
			for _, name := range names {
				next = append(next, filepath.Join(at, name))
			}
		}
		found = next
	}
	return found, nil
}

// matches returns the names in a directory that match one part of a pattern.
func globMatches(dir, part string) (found []string, err error) {
	if !strings.ContainsAny(part, `*?[\`) {
		_, err := os.Lstat(filepath.Join(dir, part))
		if err != nil {
			return nil, unlessAbsent(err)
		}
		return []string{part}, nil
	}
	names, err := namesIn(dir)
	if err != nil {
		return nil, unlessAbsent(err)
	}
	for _, name := range names {
		ok, err := filepath.Match(part, name)
		if err != nil {
			return nil, err
		}
		if ok {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	return found, nil
}

// namesIn returns the names in a directory. It opens no other kind of file: the open of a pipe waits.
func namesIn(dir string) ([]string, error) {
	f, err := os.OpenFile(dir, unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// unlessAbsent returns nil for an error that says that the file does not exist, or not for this process. ESRCH is the
// error of procfs for a process that has ended.
func unlessAbsent(err error) error {
	for _, absent := range []error{fs.ErrNotExist, fs.ErrPermission, unix.ENOTDIR, unix.ELOOP, unix.ESRCH} {
		if errors.Is(err, absent) {
			return nil
		}
	}
	return err
}
