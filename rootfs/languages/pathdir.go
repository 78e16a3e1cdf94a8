package languages

import (
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// A pathDir is a directory of PATH. It is open if it exists: some thirty looks at its programs take half
// the time then.
type pathDir struct {
	path string
	fd   int // -1 if it does not exist
}

// openDirs opens the absolute directories of a PATH, each once. The caller must close them.
func openDirs(pathList string) (dirs []pathDir) {
	seen := map[string]bool{}
	for _, path := range filepath.SplitList(pathList) {
		if path = filepath.Clean(path); !filepath.IsAbs(path) || seen[path] {
			continue
		}
		seen[path] = true
		fd, err := descriptor.Retry(func() (int, error) {
			return unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		})
		if err != nil {
			fd = -1
		}
		dirs = append(dirs, pathDir{path, fd})
	}
	return dirs
}

func (d pathDir) exists() bool { return d.fd >= 0 }

func (d pathDir) close() {
	if d.exists() {
		_ = unix.Close(d.fd) // nothing was written
	}
}

// hasProgram says whether the directory has an executable file of this name.
func (d pathDir) hasProgram(name string) bool {
	var st unix.Stat_t
	return d.exists() && unix.Fstatat(d.fd, name, &st, 0) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&0o111 != 0
}
