package record

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// syncDescriptor is where PID 1 holds the store's top, open for reading
// (cmd/sandbox-agent/start.h). PID 1s of older releases have none.
const syncDescriptor = 8

// ErrNoSyncFile says that PID 1 was started by an older release.
var ErrNoSyncFile = errors.New("PID 1 holds no open file of it")

// OpenTop takes PID 1's own open file of the store's top. top is that of [storeOf].
func OpenTop(init process.ID, top *os.File) (*os.File, error) {
	held, err := takeFile(init, syncDescriptor)
	if errors.Is(err, unix.EBADF) {
		return nil, ErrNoSyncFile
	}
	if err != nil {
		return nil, err
	}
	var is, want unix.Stat_t
	if err := errors.Join(unix.Fstat(int(held.Fd()), &is), unix.Fstat(int(top.Fd()), &want)); err != nil {
		return nil, errors.Join(err, held.Close())
	}
	flags, err := unix.FcntlInt(held.Fd(), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_PATH != 0 || is.Dev != want.Dev || is.Ino != want.Ino { // an older agent's socket
		return nil, errors.Join(ErrNoSyncFile, held.Close())
	}
	return held, nil
}

// takeFile duplicates the descriptor of PID 1 with this number (pidfd_getfd(2), Linux 5.6). [os.ErrNotExist] says
// that PID 1 has ended.
func takeFile(init process.ID, number int) (*os.File, error) {
	pidfd, err := init.Open()
	if err != nil {
		return nil, err
	}
	defer pidfd.Close()
	fd, err := unix.PidfdGetfd(int(pidfd.Fd()), number, 0)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_getfd", err)
	}
	return os.NewFile(uintptr(fd), "store"), nil
}

// storeDescriptor is where PID 1 holds the store (cmd/sandbox-agent/start.h).
const storeDescriptor = 7

// OpenStore opens the top of the store of a sandbox that is up, to be looked into.
// [os.ErrNotExist] says that its PID 1 has ended.
func OpenStore(init process.ID) (*os.File, error) {
	return openDirOf(init, fmt.Sprintf("fd/%d", storeDescriptor))
}

func openDirOf(init process.ID, name string) (*os.File, error) {
	return openOf(init, name, unix.O_PATH|unix.O_DIRECTORY)
}

// openOf opens a file below /proc/PID. [os.ErrNotExist] says that the
// process has ended.
func openOf(init process.ID, name string, flags int) (*os.File, error) {
	f, err := os.OpenFile(fmt.Sprintf("/proc/%d/%s", init.Pid, name), flags, 0)
	if err != nil {
		return nil, err
	}
	if !init.Lives() { // before it was opened, and another has its number
		f.Close()
		return nil, os.ErrNotExist
	}
	return f, nil
}

// OpenNetwork opens the sandbox's network namespace.
func OpenNetwork(init process.ID) (*os.File, error) { return openOf(init, "ns/net", os.O_RDONLY) }

// OpenMounts opens the sandbox's mount namespace. The mounts last as long as the file is open.
func OpenMounts(init process.ID) (*os.File, error) { return openOf(init, "ns/mnt", os.O_RDONLY) }

// TakeStore duplicates PID 1's descriptor of the store. Unlike with [OpenStore], the kernel unmounts the store only
// after the file is closed.
func TakeStore(init process.ID) (*os.File, error) { return takeFile(init, storeDescriptor) }

// HostBinds are the directories and files of the host in a sandbox: the workspace and the binds. Writes to an overlay go
// to a layer, also where the overlay is the workspace.
func HostBinds(c spec.Config) (all []spec.Bind) {
	if c.Workspace != "" && !slices.Contains(c.Overlays, c.Workspace) {
		all = append(all, spec.Bind{Source: c.Workspace, Target: spec.WorkspacePath, Writable: true})
	}
	return append(all, c.Binds...)
}

// WritableBinds are the places of writable binds from the host.
func WritableBinds(c spec.Config) (targets []string) {
	for _, b := range HostBinds(c) {
		if b.Writable {
			targets = append(targets, b.Target)
		}
	}
	return targets
}

// ToRead are the flags that open any file for reading, without waiting for it.
const ToRead = unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY

// OpenShown opens a path as the sandbox sees it, with flags of open(2).
func OpenShown(init process.ID, path string, flags int) (*os.File, error) {
	root, err := openDirOf(init, "root")
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return OpenRooted(root, path, flags)
}

// OpenRooted opens a path below a directory, which is the root of the path.
func OpenRooted(root *os.File, path string, flags int) (*os.File, error) {
	fd, err := descriptor.OpenIn(root, path, descriptor.InRoot, flags|unix.O_NOFOLLOW)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}
