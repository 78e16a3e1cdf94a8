package launcher

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/statedir"
)

// The state root says which process is a sandbox's first and which cgroups are its own.
// A launcher of root kills and freezes by its word.

// checkRoot refuses a state root that anybody but root and this user may change. One
// that is not there is no error. [readRecord] checks the file that it has opened, too.
func (l *Launcher) checkRoot() error { return statedir.Check(l.sandboxes()) }

// container loads the sandbox's container. What the record of the container names is
// the sandbox's own: the cgroups, and PID 1.
func (v *live) container() (*container.Container, error) {
	l := v.launcher
	if err := errors.Join(l.checkRoot(), statedir.CheckOwnDir(filepath.Join(l.root, v.id), unix.O_NOFOLLOW)); err != nil {
		return nil, err
	}
	c, err := container.LoadIn(l.root, v.id, l.cgroupOf(v.id))
	if err != nil {
		return nil, err
	}
	s, err := c.State()
	if err != nil {
		return nil, err
	}
	if init := v.init(); s.Pid != 0 && s.Pid != init.Pid {
		return nil, fmt.Errorf("sandbox %s: %w: process %d is not its PID 1, which is %d", v.id, container.ErrForeign, s.Pid, init.Pid)
	}
	return c, nil
}
