package record

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// WritableBinds are the places of writable binds from the host.
func WritableBinds(c spec.Config) (targets []string) {
	if c.Workspace != "" && !slices.Contains(c.Overlays, c.Workspace) {
		targets = append(targets, spec.WorkspacePath)
	}
	for _, b := range c.Binds {
		if b.Writable {
			targets = append(targets, b.Target)
		}
	}
	return targets
}

// OpenShown opens a path as the sandbox sees it.
func OpenShown(init process.ID, path string) (*os.File, error) {
	root, err := os.OpenFile(fmt.Sprintf("/proc/%d/root", init.Pid), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if !init.Lives() { // before it was opened, and another has its number
		return nil, os.ErrNotExist
	}
	return OpenRooted(root, path)
}

// OpenRooted opens a path below a directory, which is the root of the path.
func OpenRooted(root *os.File, path string) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_SYMLINKS,
	}
	fd, err := OpenIn(root, path, &how)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// OpenIn is openat2(2) below a directory that another goroutine may close, as the
// end of a watch does while commands go on: its number may be another file's then.
func OpenIn(root *os.File, path string, how *unix.OpenHow) (fd int, err error) {
	raw, err := root.SyscallConn()
	if err != nil {
		return -1, err
	}
	if closed := raw.Control(func(dir uintptr) { fd, err = unix.Openat2(int(dir), path, how) }); closed != nil {
		return -1, closed
	}
	return fd, err
}
