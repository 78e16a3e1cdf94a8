package record

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
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

// ToRead opens any file to be read: none is waited for.
const ToRead = unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY

// OpenShown opens a path as the sandbox sees it, with flags of open(2).
func OpenShown(init process.ID, path string, flags int) (*os.File, error) {
	root, err := os.OpenFile(fmt.Sprintf("/proc/%d/root", init.Pid), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if !init.Lives() { // before it was opened, and another has its number
		return nil, os.ErrNotExist
	}
	return OpenRooted(root, path, flags)
}

// OpenRooted opens a path below a directory, which is the root of the path.
func OpenRooted(root *os.File, path string, flags int) (*os.File, error) {
	fd, err := descriptor.OpenIn(root, path, descriptor.InRoot, flags|unix.O_NOFOLLOW)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}
