package record

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// WritableBinds are the places of what is bound from the host, writable.
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

// OpenShown opens what a sandbox has at a path.
func OpenShown(init process.ID, path string) (*os.File, error) {
	root, err := os.OpenFile(fmt.Sprintf("/proc/%d/root", init.Pid), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if !init.Lives() { // before it was opened, and another has its number
		return nil, os.ErrNotExist
	}
	return openTop(root, path)
}
