package container

import (
	"errors"
	"fmt"
	"os/exec"

	"github.com/opencontainers/runc/libcontainer"
)

// CRIUOptions are choices of a checkpoint or of a restore, which the program
// criu carries out (criu(8)). ImagesDirectory is where it keeps its images.
type CRIUOptions libcontainer.CriuOpts

// Checkpoint writes the running or paused container's processes to disk. Unless
// the options say otherwise they are gone then, and the caller destroys the
// container.
func (c *Container) Checkpoint(o CRIUOptions) error {
	return wantCRIU(c.lc.Checkpoint((*libcontainer.CriuOpts)(&o)))
}

// Restore starts the container, which has been created from the same spec and has no
// process yet, with the processes of a checkpoint in place of p's command. The stdio and
// the terminal of p are used.
func (c *Container) Restore(p Process, o CRIUOptions) (*Child, error) {
	return c.launch(p, true, func(lp *libcontainer.Process) error {
		return wantCRIU(c.lc.Restore(lp, (*libcontainer.CriuOpts)(&o)))
	})
}

func wantCRIU(err error) error {
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("%w: install criu, 3.0 or newer", err)
	}
	return err
}
