package container

import (
	"context"
	"errors"
	"fmt"

	"github.com/opencontainers/runc/libcontainer"
)

// ErrNotPaused says that there is nothing to resume.
var ErrNotPaused = libcontainer.ErrNotPaused

// ErrNotFrozen says that a process did not stand still in time. All processes of the container go on.
var ErrNotFrozen = errors.New("unable to freeze")

// Pause freezes every process of the container and returns when all of them
// stand still. Where that does not come about it thaws them again and says so.
// A container that is paused already, or has stopped, is [ErrNotRunning].
func (c *Container) Pause() error {
	status, err := c.status()
	if err != nil {
		return unlessGone(err)
	}
	if status != libcontainer.Running && status != libcontainer.Created {
		return ErrNotRunning
	}
	state, err := c.lc.State() // also of a container that runc has made
	if err != nil {
		return unlessGone(err)
	}
	f, err := openFreezer(state.CgroupPaths)
	if err != nil {
		return err
	}
	if f == nil {
		return fmt.Errorf("container %s has no cgroup that can freeze: %w", c.ID(), errors.ErrUnsupported)
	}
	defer func() { _ = f.Close() }()
	// On v1 libcontainer gives up after a third of a second. That is too short for a process that waits for a
	// disk or a processor.
	patience := freezingPatience(state.CgroupPaths)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err = f.Freeze(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w within %s: a process waits in the kernel", ErrNotFrozen, patience)
	}
	return unlessGone(err)
}

// Resume lets a paused container go on; any other is [ErrNotPaused].
func (c *Container) Resume() error { return unlessGone(c.lc.Resume()) }

// unlessGone words the error of a container whose cgroup was removed since it
// was loaded, before or after a file of it was opened, or is another's by now: one
// that had stopped is not found paused.
func unlessGone(err error) error {
	if cgroupGone(err) ||
		err != nil && err.Error() == "invalid state transition from stopped to paused" {
		return ErrNotRunning
	}
	return err
}

// Processes lists the container's processes by their numbers in the caller's
// pid namespace, those in cgroups below its own included. Unless it is paused,
// some may have ended meanwhile. A stopped container has none.
func (c *Container) Processes() ([]int, error) { return c.lc.Processes() }
