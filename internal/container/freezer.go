package container

import (
	"errors"
	"io/fs"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
)

// freezingPatience bounds a freeze: a process can wait for a disk. On v2 it is libcontainer's bound, since a
// shorter one would thaw a container that runc is freezing.
func freezingPatience(groups map[string]string) time.Duration {
	if groups["freezer"] != "" {
		return 2 * time.Second
	}
	return 10 * time.Second
}

// settleFreezer thaws a container that is about to be frozen and never will be:
// a thread in a system call that the freezer can't interrupt keeps it so, or on
// v1 one that an execve(2) of its process waits for and that is frozen already.
// libcontainer waits for the end of that whenever it is asked for a container's
// status, on v1 without a limit, and on v2 10 seconds, to fail then.
//
// A container without a freezer, or without any state, is no error.
func settleFreezer(root, id string) error {
	if filepath.Base(id) != id {
		return nil // Load refuses the id
	}
	groups, err := readGroups(filepath.Join(root, id))
	if groups == nil || err != nil {
		return nil // Load names the mistake
	}
	f, err := openFreezer(groups)
	if f == nil {
		return err
	}
	defer func() { _ = f.Close() }()
	for end := time.Now().Add(freezingPatience(groups)); ; time.Sleep(5 * time.Millisecond) {
		freezing, err := f.Freezing()
		if cgroupGone(err) {
			return nil
		}
		if err != nil || !freezing {
			return err
		}
		if time.Now().After(end) {
			return f.Thaw()
		}
	}
}

// openFreezer returns nil where a container with these cgroups has none that can freeze.
func openFreezer(groups map[string]string) (*cgroups.Freezer, error) {
	f, err := cgroups.OpenFreezer(groups["freezer"], groups[""])
	if errors.Is(err, errors.ErrUnsupported) || cgroupGone(err) {
		return nil, nil
	}
	return f, err
}

// cgroupGone says that a cgroup was removed, before or after a file of it was opened.
func cgroupGone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) }
