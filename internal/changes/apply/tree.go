package apply

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// keptDirs bounds the descriptors that a tree keeps open.
const keptDirs = 64

// maxPath bounds the depth of the walk: each directory on the way has its path in memory,
// and any user can nest any number of them. No applied path is as long, nor is its staging
// place.
const maxPath = 2 * unix.PathMax

// A tree is a directory with all below it on the same mount. Directories in it are opened
// one name after the other from the one above, and some are kept open: that is fast
// because the next path is near.
type tree struct {
	root  int
	kept  map[string]openDirectory
	order []string // of kept, the oldest first
}

// An openDirectory is one that is kept open.
type openDirectory struct {
	fd  int
	ino uint64
}

func newTree(root *os.File) *tree {
	return &tree{root: int(root.Fd()), kept: map[string]openDirectory{}}
}

// forget closes the kept directories, and so finds them anew.
func (t *tree) forget() {
	for _, dir := range t.kept {
		_ = unix.Close(dir.fd)
	}
	clear(t.kept)
	t.order = nil
}

// dir returns a descriptor of a directory, for use as a place only. It is the
// tree's, and stays open until keptDirs others have been opened.
func (t *tree) dir(path string) (int, error) {
	if path == "" {
		return t.root, nil
	}
	dir, err := t.heldDirectory(path)
	return dir.fd, err
}

func (t *tree) heldDirectory(path string) (openDirectory, error) {
	if dir, ok := t.kept[path]; ok {
		return dir, nil
	}
	above, name := layer.Split(path)
	parent, err := t.dir(above)
	if err != nil {
		return openDirectory{fd: -1}, err
	}
	fd, err := beneath(parent, name, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return openDirectory{fd: -1}, &pathError{path, err}
	}
	e, err := statFD(fd)
	if err != nil {
		_ = unix.Close(fd)
		return openDirectory{fd: -1}, &pathError{path, err}
	}
	if len(t.order) == keptDirs {
		_ = unix.Close(t.kept[t.order[0]].fd)
		delete(t.kept, t.order[0])
		t.order = t.order[1:]
	}
	t.kept[path] = openDirectory{fd, e.Ino}
	t.order = append(t.order, path)
	return t.kept[path], nil
}

// inode identifies a directory, other than the root.
func (t *tree) inode(path string) (uint64, error) {
	if path == "" {
		return 0, nil
	}
	dir, err := t.heldDirectory(path)
	return dir.ino, err
}

// longestNamed is how much of a path that is too long is told.
const longestNamed = 100

// parent returns the directory that an entry is in, as dir does.
func (t *tree) parent(path string) (dir int, name string, err error) {
	if len(path) > maxPath {
		return -1, "", &pathError{path[:longestNamed] + "…", unix.ENAMETOOLONG}
	}
	above, name := layer.Split(path)
	dir, err = t.dir(above)
	return dir, name, err
}

// open opens a path, with no link followed. The flags must be such that opening has no
// effect on any file.
func (t *tree) open(path string, flags int) (*os.File, error) {
	fd, err := t.openFD(path, flags)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// openFD is open. The caller must close the descriptor.
func (t *tree) openFD(path string, flags int) (int, error) {
	dir, name, err := t.parent(path)
	if err != nil {
		return -1, err
	}
	fd, err := beneath(dir, name, flags)
	if err != nil {
		return -1, &pathError{path, err}
	}
	return fd, nil
}

// openFile opens a regular file for reading.
func (t *tree) openFile(path string) (*os.File, error) {
	// Opening some devices has effects.
	if e, err := t.stat(path); err != nil || e.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errors.Join(err, &pathError{path, errNotRegular})
	}
	f, err := t.open(path, readSeen)
	if err != nil {
		return nil, err
	}
	if e, err := statFD(int(f.Fd())); err != nil || e.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errors.Join(&pathError{path, errors.Join(err, errNotRegular)}, f.Close())
	}
	return f, nil
}

// readSeen are the flags for a path that was a regular file a moment ago. It can be another file now.
const readSeen = unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOFOLLOW | unix.O_NOCTTY

var errNotRegular = errors.New("not a regular file any more")

// names lists a directory, in order.
func (t *tree) names(path string) ([]string, error) {
	fd, err := t.dir(path)
	if err != nil {
		return nil, err
	}
	own, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &pathError{path, err}
	}
	dir := os.NewFile(uintptr(own), path)
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, &pathError{path, err}
	}
	slices.Sort(names)
	return names, nil
}

// walk visits all that is below a directory, parents first. Other mounts are
// visited but not entered.
func (t *tree) walk(path string, visit func(path string, e entry) error) error {
	return t.each(path, func(at string, e entry) error {
		if err := visit(at, e); err != nil || !e.dir() || e.mount {
			return err
		}
		return t.walk(at, visit)
	})
}

// each visits the entries of a directory, in order, without those that vanish meanwhile.
func (t *tree) each(path string, visit func(path string, e entry) error) error {
	names, err := t.names(path)
	if err != nil {
		return err
	}
	for _, name := range names {
		at := layer.Join(path, name)
		e, err := t.stat(at)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err == nil {
			err = visit(at, e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// beneath opens a name in a directory, or a path below it, on the same mount and
// through no link.
func beneath(dir int, name string, flags int) (int, error) {
	return descriptor.Open(dir, name, descriptor.OneMount, flags)
}

// A pathError is an error of the system about a path in the tree, with the way
// out where there is one.
type pathError struct {
	path string
	err  error
}

func (e *pathError) Error() string {
	return fmt.Sprintf("%q: %v%s", cmp.Or(e.path, "."), e.err, wayOut(e.err))
}

func (e *pathError) Unwrap() error { return e.err }

// errorAt adds the path to a bare error of the system.
func errorAt(path string, err error) error {
	if errno, ok := err.(unix.Errno); ok { //nolint:errorlint // one that is wrapped has its path
		return &pathError{path, errno}
	}
	return err
}

// errorAbout adds a path to an error that may name another.
func errorAbout(path string, err error) error {
	if _, ok := err.(unix.Errno); ok { //nolint:errorlint // as above
		return errorAt(path, err)
	}
	return fmt.Errorf("%q: %w", path, err)
}

// wayOut names a user's way out of an error.
func wayOut(err error) string {
	switch {
	case errors.Is(err, unix.EXDEV):
		return " (it is on another mount than the tree: unmount that, or apply to it apart)"
	case errors.Is(err, unix.EBUSY):
		return " (something is mounted there: unmount it first)"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return " (you may not do that there: change its permissions, or choose other paths)"
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		return " (it is not a directory any more)"
	case errors.Is(err, unix.ENAMETOOLONG):
		return " (it lies too deep: move it up, or remove it)"
	case errors.Is(err, unix.EROFS):
		return " (mount the tree writable first)"
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return " (make room first)"
	}
	return ""
}

// isBelow tells whether a path is the other or below it.
func isBelow(path, above string) bool {
	return above == "" || path == above || len(path) > len(above) && path[len(above)] == '/' && strings.HasPrefix(path, above)
}
