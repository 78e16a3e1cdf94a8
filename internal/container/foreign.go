package container

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
)

// ErrForeign says that a container's state names objects that cannot be a sandbox's.
var ErrForeign = errors.New("its state names cgroups, hooks or units of others; remove the sandbox with down")

// cgroupMounts is where the cgroup hierarchies are mounted.
const cgroupMounts = "/sys/fs/cgroup"

// LoadIn is [Load] of a sandbox's container: its cgroups are at the path group of the
// hierarchies, and it has neither hooks nor a systemd unit. Engines choose all that for
// their containers. A state that says otherwise is [ErrForeign]. Nothing that it names
// is touched then.
func LoadIn(root, id, group string) (*Container, error) {
	if filepath.Base(id) != id {
		return nil, ErrInvalidID
	}
	paths, err := readGroups(filepath.Join(root, id)) // Load thaws these groups
	if err != nil {
		return nil, err
	}
	if err := checkPaths(id, paths, group); err != nil {
		return nil, err
	}
	c, err := Load(root, id)
	if err != nil {
		return nil, err
	}
	return c, c.checkOwn(group)
}

func checkPaths(id string, paths map[string]string, group string) error {
	for _, dir := range paths {
		mount, ok := strings.CutSuffix(dir, group)
		if !ok || mount != cgroupMounts && filepath.Dir(mount) != cgroupMounts || filepath.Clean(mount) != mount {
			return fmt.Errorf("container %s: %w: cgroup %s", id, ErrForeign, dir)
		}
	}
	return nil
}

func (c *Container) checkOwn(group string) error {
	state, err := c.lc.State()
	if err != nil {
		return err
	}
	config := c.lc.Config()
	foreign := func(what string) error { return fmt.Errorf("container %s: %w: %s", c.ID(), ErrForeign, what) }
	for _, hooks := range config.Hooks {
		if len(hooks) > 0 {
			return foreign("hooks")
		}
	}
	switch g := config.Cgroups; {
	case g == nil:
		return foreign("no cgroup")
	case g.Systemd:
		return foreign("a systemd unit")
	case g.Path != group:
		return foreign("cgroup " + g.Path)
	case config.IntelRdt != nil, state.IntelRdtPath != "":
		return foreign("a resctrl group")
	}
	return checkPaths(c.ID(), state.CgroupPaths, group)
}

// DiscardIn removes the state directory of a sandbox's container, of which the caller
// knows that nothing else is left, no process and no cgroup. Whole or not, one that is
// not there is no error. [ErrForeign] says that the state names a cgroup of others that is
// there: the directory stays. [ErrBusy] says that others are at work.
func DiscardIn(root, id, group string) error {
	if id == "." || id == ".." || id != filepath.Base(id) {
		return ErrInvalidID
	}
	dir := filepath.Join(root, id)
	return removeState(dir, func() error {
		paths, err := readGroups(dir)
		if err != nil {
			return err
		}
		maps.DeleteFunc(paths, func(_, path string) bool { return isGone(path) })
		if err := checkPaths(id, paths, group); err != nil {
			return err
		}
		return checkRemains(dir)
	})
}

func isGone(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}
