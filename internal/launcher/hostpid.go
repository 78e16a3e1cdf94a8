package launcher

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/fsmount"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A sandbox in the launcher's pid namespace has no process 1. Processes of the host and of other
// sandboxes are protected from it by their ids alone, and so is its agent.

// checkSharing refuses the launcher's pid namespace for a sandbox that has an id of a host's
// user: its processes could signal and read the processes of that user.
func (m *creation) checkSharing() error {
	if m.request.Config.PID != spec.PIDHost {
		return nil
	}
	for _, e := range append(m.root.UIDMappings(), m.root.GIDMappings()...) {
		if e.HostID < m.record.IDBase || e.HostID-m.record.IDBase+e.Size > spec.IDs {
			return fault.Refusal(fmt.Errorf("pid namespace %q: a file system that cannot be idmapped makes user %d of the host a user of the sandbox; use a directory on another file system, or the pid namespace %q",
				spec.PIDHost, e.HostID, spec.PIDPrivate))
		}
	}
	return nil
}

// mountProc mounts a procfs of the launcher's pid namespace beside the root, and returns the
// path. The kernel lets nobody mount one in the sandbox's user namespace, which does not own the
// pid namespace (proc(5)). With hidepid=ptraceable, Linux 5.8, only the processes that the reader
// may trace are there. An older kernel refuses this word, and so changes no other procfs.
func mountProc() (path string, err error) {
	path = filepath.Join(record.Stage, "proc")
	defer func() {
		if err != nil {
			err = fmt.Errorf("procfs of the host for the sandbox: %w", err)
		}
	}()
	if err := os.Mkdir(path, 0o700); err != nil {
		return "", err
	}
	procfs, err := fsmount.Open("proc", "proc", [2]string{"hidepid", "ptraceable"})
	if errors.Is(err, unix.EINVAL) {
		return "", fault.Unavailable(err)
	}
	if err != nil {
		return "", err
	}
	defer procfs.Close()
	mnt, err := procfs.MountWith(unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return "", err
	}
	defer descriptor.CloseFD(mnt)
	return path, unix.MoveMount(mnt, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH)
}
