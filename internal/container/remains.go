package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	lccgroups "github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
)

// cgroupsName is a file in the state directory that names the container's cgroups from
// before they are made. libcontainer writes its own state.json long after that: for a
// start that is killed in between, only this file names the cgroups to remove.
const cgroupsName = "cgroups.json"

// ErrDamaged says that a container's state cannot be read. [RemoveRemains] removes the
// rest of the container.
var ErrDamaged = errors.New("its state is damaged: delete --force removes it")

// load is libcontainer.Load with a damaged state told from other errors.
// v1.5.2 takes JSON that it can read for whole, and panics if it is not.
func load(root, id string) (lc *libcontainer.Container, err error) {
	damaged := func(why any) error {
		return fmt.Errorf("container %s: %w (%v)", id, ErrDamaged, why)
	}
	defer func() {
		if recover() != nil {
			lc, err = nil, damaged("it lacks something")
		}
	}()
	lc, err = libcontainer.Load(root, id)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, new(*json.SyntaxError)) || errors.As(err, new(*json.UnmarshalTypeError)) {
		return nil, damaged(err)
	}
	return lc, err
}

func (c *Container) recordCgroups() error {
	state, err := c.lc.State()
	if err != nil {
		return err
	}
	data, err := json.Marshal(state.CgroupPaths)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.root, c.ID(), cgroupsName), data, 0o600)
}

// RemoveRemains ends the processes of an id that [Load] does not load, and
// removes its cgroups and its state directory: one whose create was killed half
// way, or whose state is damaged. An id that was never there is no error,
// [ErrExist] says that the container is complete, as one is whose create was
// waited for, and [ErrBusy] that others are at work. A directory that is none of
// a container is left alone.
func RemoveRemains(ctx context.Context, root, id string) error {
	_, err := Load(root, id)
	if errors.Is(err, ErrInvalidID) { // it may name any directory
		return err
	}
	dir := filepath.Join(root, id)
	return removeState(dir, func() error {
		if _, err := Load(root, id); err == nil {
			return fmt.Errorf("container %s is complete: %w", id, ErrExist)
		}
		if err := checkRemains(dir); err != nil {
			return err
		}
		if err := removeCgroups(ctx, dir); err != nil {
			return fmt.Errorf("container %s: %w", id, err)
		}
		return nil
	})
}

// Rename gives a container another id. Nobody else may work on it. [ErrExist] says that another
// container has the id.
func Rename(root, from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, filepath.Join(root, from), unix.AT_FDCWD, filepath.Join(root, to), unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EEXIST) {
		return ErrExist
	}
	if err != nil {
		return fmt.Errorf("give container %s the id %s: %w", from, to, err)
	}
	return nil
}

// removeState removes a state directory, if there is one and first succeeds. It holds the
// directory's lock.
func removeState(dir string, first func() error) error {
	lock, err := lockState(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := first(); err != nil {
		return err
	}
	if err := dropCriuRoot(dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// criuRoot is where libcontainer's restore mounts the root of the container, in the state directory.
const criuRoot = "criu-root"

// dropCriuRoot unmounts what a killed restore has left: a removal of the state directory would remove the files of
// the container's root.
func dropCriuRoot(dir string) error {
	path := filepath.Join(dir, criuRoot)
	var err error
	for err == nil { // each of several mounts
		err = unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	if err == unix.EINVAL { // nothing is mounted any more
		err = unix.Rmdir(path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s, which a killed restore has left: %w", path, err)
	}
	return nil
}

// checkRemains refuses a directory that no create has made. A wrong state root must not
// lose its content.
func checkRemains(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		switch name := e.Name(); {
		case name == cgroupsName, name == criuRoot, name == "checkpoint", name == "state.json", name == "exec.fifo", name == "notify", strings.HasPrefix(name, "state-"):
		default:
			return fmt.Errorf("%s holds %s, which is no container's: nothing was removed; is --root right?", dir, name)
		}
	}
	return nil
}

// readGroups returns the cgroups that a state directory records. Without a record, or with
// a damaged one, there are none: a record that a kill has cut short was followed by no
// group.
func readGroups(dir string) (map[string]string, error) {
	data, err := os.ReadFile(filepath.Join(dir, cgroupsName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var paths map[string]string
	if err := json.Unmarshal(data, &paths); err != nil {
		return nil, nil //nolint:nilerr // a damaged record names no group
	}
	return paths, nil
}

// removeCgroups removes the cgroups that a state directory records, with their processes.
func removeCgroups(ctx context.Context, dir string) error {
	paths, err := readGroups(dir)
	if err != nil {
		return err
	}
	if err := killGroups(ctx, paths); err != nil {
		return err
	}
	return lccgroups.RemovePaths(paths)
}

// killGroups kills all processes in the cgroups with the given directories. The processes
// of a killed create end by themselves, but those behind a damaged state do not.
func killGroups(ctx context.Context, dirs map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, killPatience)
	defer cancel()
	host, err := cgroups.Probe()
	if err != nil {
		return err
	}
	names := map[string]bool{}
	for _, dir := range dirs {
		for _, c := range host.Controllers {
			if name, ok := strings.CutPrefix(dir, c.Mountpoint); ok && strings.HasPrefix(name, "/") {
				names[name] = true
			}
		}
	}
	for name := range names {
		group, err := host.Open(name)
		if err == nil {
			err = group.Kill(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
