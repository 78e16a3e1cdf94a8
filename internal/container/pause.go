package container

import (
	"errors"
	"io/fs"

	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"
)

// ErrNotPaused says that there is nothing to resume.
var ErrNotPaused = libcontainer.ErrNotPaused

// Pause freezes every process of the container and returns when all of them
// stand still. Where that does not come about it thaws them again and says so.
// A container that is paused already, or has stopped, is [ErrNotRunning].
func (c *Container) Pause() error {
	err := c.lc.Pause()
	if err != nil && err.Error() == "unable to freeze" { // libcontainer has no other sign of it
		err = freezePatiently(c.root, c.ID(), err)
	}
	if err != nil {
		return errors.Join(unlessGone(err), settleFreezer(c.root, c.ID()))
	}
	return nil
}

// Resume lets a paused container go on; any other is [ErrNotPaused].
func (c *Container) Resume() error { return unlessGone(c.lc.Resume()) }

// unlessGone words the error of a container whose cgroup was removed since it
// was loaded, before or after a file of it was opened, or is another's by now: one
// that had stopped is not found paused.
func unlessGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) ||
		err != nil && err.Error() == "invalid state transition from stopped to paused" {
		return ErrNotRunning
	}
	return err
}

// Processes lists the container's processes by their numbers in the caller's
// pid namespace, those in cgroups below its own included. Unless it is paused,
// some may have ended meanwhile. A stopped container has none.
func (c *Container) Processes() ([]int, error) { return c.lc.Processes() }
