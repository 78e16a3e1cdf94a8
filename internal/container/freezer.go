package container

import (
	"errors"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"golang.org/x/sys/unix"
)

// freezingPatience is more than any freeze takes that comes about.
const freezingPatience = 2 * time.Second

// settleFreezer thaws a container that is about to be frozen and never will be:
// a thread in a system call that the freezer can't interrupt keeps it so, or on
// v1 one that an execve(2) of its process waits for and that is frozen already.
// libcontainer waits for the end of that whenever it is asked for a container's
// status, on v1 without a limit, and on v2 10 seconds, to fail then.
//
// A container without a freezer, or without any state, is no error.
func settleFreezer(root, id string) error {
	f, err := openFreezer(root, id)
	if f == nil {
		return err
	}
	defer func() { _ = f.Close() }()
	for end := time.Now().Add(freezingPatience); ; time.Sleep(5 * time.Millisecond) {
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

// openFreezer returns nil where there is no such container yet, where the id is none that
// Load takes, and where the container has no cgroup that can freeze.
func openFreezer(root, id string) (*cgroups.Freezer, error) {
	if filepath.Base(id) != id {
		return nil, nil
	}
	groups, err := readGroups(filepath.Join(root, id))
	if err != nil {
		return nil, nil //nolint:nilerr // Load names the mistake
	}
	f, err := cgroups.OpenFreezer(groups["freezer"], groups[""])
	if errors.Is(err, errors.ErrUnsupported) || cgroupGone(err) {
		return nil, nil
	}
	return f, err
}

// cgroupGone says that a cgroup was removed, before or after a file of it was opened.
func cgroupGone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) }
