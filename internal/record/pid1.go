package record

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
)

// syncDescriptor is where PID 1 holds the store's top, open for reading
// (cmd/sandbox-agent/start.h). PID 1s of older releases have none.
const syncDescriptor = 8

// ErrNoSyncFile says that PID 1 was started by an older release.
var ErrNoSyncFile = errors.New("PID 1 holds no open file of it")

// OpenTop takes PID 1's own open file of the store's top. top is that of [storeOf].
func OpenTop(init process.ID, top *os.File) (*os.File, error) {
	pidfd, err := unix.PidfdOpen(init.Pid, 0)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(pidfd)
	if !init.Lives() { // before the number was bound to a process
		return nil, os.ErrNotExist
	}
	fd, err := unix.PidfdGetfd(pidfd, syncDescriptor, 0)
	if errors.Is(err, unix.EBADF) {
		return nil, ErrNoSyncFile
	}
	if err != nil {
		return nil, os.NewSyscallError("pidfd_getfd", err)
	}
	held := os.NewFile(uintptr(fd), "store")
	var is, want unix.Stat_t
	if err := errors.Join(unix.Fstat(fd, &is), unix.Fstat(int(top.Fd()), &want)); err != nil {
		return nil, errors.Join(err, held.Close())
	}
	flags, err := unix.FcntlInt(held.Fd(), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_PATH != 0 || is.Dev != want.Dev || is.Ino != want.Ino { // an older agent's socket
		return nil, errors.Join(ErrNoSyncFile, held.Close())
	}
	return held, nil
}

// storeDescriptor is where PID 1 holds the store (cmd/sandbox-agent/start.h).
const storeDescriptor = 7

// OpenStore opens the top of the store of a sandbox that is up, to be looked into.
// [os.ErrNotExist] says that its PID 1 has ended.
func OpenStore(init process.ID) (*os.File, error) {
	f, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/%d", init.Pid, storeDescriptor), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	if !init.Lives() { // before it was opened, and another has its number
		f.Close()
		return nil, os.ErrNotExist
	}
	return f, nil
}
