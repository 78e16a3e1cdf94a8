package layer

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"golang.org/x/sys/unix"
)

// longest is how much of a path is resolved at once; the kernel takes 4095 bytes.
const longest = 4000

// checkPath refuses paths that Changes would never list.
func checkPath(path string) error {
	for part := range strings.SplitSeq(path, "/") {
		if part == "" || part == "." || part == ".." || strings.IndexByte(part, 0) >= 0 {
			return fmt.Errorf("path %q: want one below the tree, like a/b", path)
		}
	}
	return nil
}

// Split parts a path in a tree into the directory, "" for the tree itself, and the name in it.
func Split(path string) (dir, name string) {
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		return path[:i], path[i+1:]
	}
	return "", path
}

// Join is the inverse of Split.
func Join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// movedAway is how often EXDEV is looked at again: the kernel says EXDEV for another
// mount, and for a file that was moved out of the directory at that very moment.
const movedAway = 10

// openat2 opens a name without links, on the one mount.
func openat2(dir int, name string, flags int) (int, error) {
	for moved := 0; ; {
		fd, err := descriptor.Open(dir, name, descriptor.OneMount, flags|unix.O_NOFOLLOW)
		if err != unix.EXDEV || moved == movedAway {
			return fd, err
		}
		moved++
	}
}

// openPath opens a path of any length, "" for the directory itself.
func openPath(dir int, path string, flags int) (int, error) {
	at := dir
	for len(path) > longest {
		cut := strings.LastIndexByte(path[:longest], '/')
		fd, err := openat2(at, path[:cut], unix.O_PATH|unix.O_DIRECTORY)
		if at != dir {
			unix.Close(at)
		}
		if err != nil {
			return -1, err
		}
		at, path = fd, path[cut+1:]
	}
	fd, err := openat2(at, cmp.Or(path, "."), flags)
	if at != dir {
		unix.Close(at)
	}
	return fd, err
}

// openDirectory opens one to be read, or only to look names up where it may not
// be read.
func openDirectory(dir int, path string) (int, error) {
	fd, err := openPath(dir, path, unix.O_RDONLY|unix.O_DIRECTORY)
	if err == unix.EACCES {
		return openPath(dir, path, unix.O_PATH|unix.O_DIRECTORY)
	}
	return fd, err
}

// isGone says that an error is of a name that is missing, has vanished, or has changed its
// type.
func isGone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ESTALE)
}

// openRegular opens the file of an O_PATH descriptor, which it takes over, if it is a
// regular file: to open any other file can have effects.
func openRegular(fd int, path string) (*os.File, error) {
	defer unix.Close(fd)
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_TYPE, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if isWhiteout(&st) {
		return nil, &os.PathError{Op: "open", Path: path, Err: unix.ENOENT}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, &os.PathError{Op: "open", Path: path, Err: errors.New("is not a regular file")}
	}
	// The descriptor's own link leads to this file, also if the name belongs to another
	// one now.
	file, err := unix.Open(inProc(fd, ""), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(file), path), nil
}

// inProc is a path to a descriptor's directory, or a name in there, for system
// calls that take no descriptor.
func inProc(fd int, name string) string {
	if name == "" {
		return "/proc/self/fd/" + strconv.Itoa(fd)
	}
	return "/proc/self/fd/" + strconv.Itoa(fd) + "/" + name
}
