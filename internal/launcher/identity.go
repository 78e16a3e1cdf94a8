package launcher

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// An identity tells a process from others that have its number at another time,
// or in another pid namespace.
type identity struct {
	Pid int `json:"pid"`
	// Start is field 22 of /proc/PID/stat: clock ticks since the host is up.
	Start uint64 `json:"start"`
	// Namespace is the pid namespace in which Pid is the number.
	Namespace string `json:"pid_namespace"`
}

// identify describes a process of this pid namespace. The error is
// [fs.ErrNotExist] if it has ended, also if nobody has reaped it yet.
func identify(pid int) (identity, error) {
	start, err := startOf(pid)
	if err != nil {
		return identity{}, err
	}
	namespace, err := os.Readlink("/proc/self/ns/pid")
	return identity{Pid: pid, Start: start, Namespace: namespace}, err
}

// startOf reads when a process was started.
func startOf(pid int) (uint64, error) {
	fields, err := statOf(pid)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(fields[22-3], 10, 64)
}

// statOf is what the kernel tells of a process that has not ended, from field 3 of
// its line on (proc_pid_stat(5)).
func statOf(pid int) ([]string, error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		if errors.Is(err, unix.ESRCH) {
			err = fs.ErrNotExist
		}
		return nil, err
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return nil, fs.ErrNotExist
	}
	return fields, nil
}

// lives is true where that can't be told: in another pid namespace.
func (i identity) lives() bool {
	here, err := os.Readlink("/proc/self/ns/pid")
	if err != nil || here != i.Namespace {
		return true
	}
	start, err := startOf(i.Pid)
	return err == nil && start == i.Start || err != nil && !errors.Is(err, fs.ErrNotExist)
}

// exiting is PF_EXITING of a process's flags (linux/sched.h): its files are closed
// after that, and its processes are gone before it is.
const exiting = 0x4

// ends is true for a process that has ended, or is about to: whose sockets may be
// closed already. It is true where that can't be told, too.
func (i identity) ends() bool {
	here, err := os.Readlink("/proc/self/ns/pid")
	if err != nil || here != i.Namespace || !i.lives() {
		return true
	}
	fields, err := statOf(i.Pid)
	if err != nil {
		return true
	}
	flags, err := strconv.ParseUint(fields[9-3], 10, 32)
	return err != nil || flags&exiting != 0
}

func (i identity) String() string { return fmt.Sprintln(i.Pid, i.Start, i.Namespace) }

func parseIdentity(text string) (i identity, err error) {
	_, err = fmt.Sscan(text, &i.Pid, &i.Start, &i.Namespace)
	return i, err
}

// end kills the process and returns when it is gone.
func (i identity) end(patience time.Duration) error {
	if here, err := os.Readlink("/proc/self/ns/pid"); err != nil || here != i.Namespace || i.Pid <= 1 {
		return fmt.Errorf("process %d cannot be told from others here", i.Pid)
	}
	pidfd, err := unix.PidfdOpen(i.Pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(pidfd)
	// Only now is the number bound to a process: is it still that one?
	if !i.lives() {
		return nil
	}
	if err := unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	for deadline := time.Now().Add(patience); ; {
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("process %d was killed and does not end", i.Pid)
		}
		fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(left.Milliseconds())+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if n > 0 {
			return nil
		}
	}
}
