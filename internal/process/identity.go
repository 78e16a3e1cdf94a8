package process

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

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// An ID tells a process from others that have its number at another time,
// or in another pid namespace.
type ID struct {
	Pid int `json:"pid"`
	// Start is field 22 of /proc/PID/stat, without the offset of the reader's time namespace: clock ticks since
	// the host is up.
	Start uint64 `json:"start"`
	// Namespace is the pid namespace in which Pid is the number.
	Namespace string `json:"pid_namespace"`
}

// Of describes a process of this pid namespace. The error is
// [fs.ErrNotExist] if it has ended, also if nobody has reaped it yet.
func Of(pid int) (ID, error) {
	start, err := Started(pid)
	if err != nil {
		return ID{}, err
	}
	namespace, err := ownNamespace()
	return ID{Pid: pid, Start: start, Namespace: namespace}, err
}

// Started reads when a process was started, as [ID] has it.
func Started(pid int) (uint64, error) {
	fields, err := StatOf(pid)
	if err != nil {
		return 0, err
	}
	return startOf(fields)
}

func startOf(fields []string) (uint64, error) {
	start, err := strconv.ParseInt(fields[22-3], 10, 64)
	if err != nil {
		return 0, err
	}
	offset, err := bootOffset()
	return uint64(start - int64(offset/tick)), err
}

// StatOf has the fields of /proc/PID/stat of a process that has not ended, from field 3 on
// (proc_pid_stat(5)). The state, field 3, is that of the main thread. The main thread can have ended
// while other threads of the process run.
func StatOf(pid int) ([]string, error) {
	fields, err := readStat("/proc/" + strconv.Itoa(pid) + "/stat")
	if err == nil && mainThreadEnded(fields) && !hasOtherThreads(fields) {
		err = fs.ErrNotExist
	}
	return fields, err
}

// mainThreadEnded says that a thread has ended and still has its number: zombie or dead.
func mainThreadEnded(fields []string) bool { return fields[0] == "Z" || fields[0] == "X" }

// hasOtherThreads says that a process has more threads than its main thread. The main thread counts until
// its process is reaped; the others count until they end (field 20).
func hasOtherThreads(fields []string) bool { return fields[20-3] != "0" && fields[20-3] != "1" }

// readStat has the fields of a stat file of procfs, from field 3 on.
func readStat(path string) ([]string, error) {
	stat, err := readProc(path)
	if err != nil {
		if errors.Is(err, unix.ESRCH) {
			err = fs.ErrNotExist
		}
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 31-2 {
		return nil, fs.ErrNotExist
	}
	return fields, nil
}

// IsStopped says that a signal or a tracer has stopped the process. It is false where that cannot be told.
func IsStopped(pid int) bool {
	fields, err := StatOf(pid)
	return err == nil && (fields[0] == "T" || fields[0] == "t")
}

// readProc reads a short file of procfs. os.ReadFile makes three times as many system calls.
func readProc(path string) ([]byte, error) {
	fd, err := descriptor.Open(unix.AT_FDCWD, path, descriptor.NoLinks, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	room := make([]byte, 4096)
	n, err := descriptor.Retry(func() (int, error) { return unix.Read(fd, room) })
	return room[:max(n, 0)], err
}

// Lives is true where that can't be told: in another pid namespace.
func (i ID) Lives() bool {
	if !i.IsHere() {
		return true
	}
	start, err := cachedStart(i.Pid)
	return err == nil && IsSameStart(start, i.Start) || err != nil && !errors.Is(err, fs.ErrNotExist)
}

// cachedStart is Started, and remembers the answer for this process itself.
func cachedStart(pid int) (uint64, error) {
	if pid != os.Getpid() {
		return Started(pid)
	}
	return ownStart.get(func() (uint64, error) { return Started(pid) })
}

var ownStart fact[uint64]

// exiting is PF_EXITING of a process's flags (linux/sched.h): its files are closed
// after that, and its processes are gone before it is.
const exiting = 0x4

// Ends is true for a process that has ended, or is about to: whose sockets may be
// closed already. It is true where that can't be told, too.
func (i ID) Ends() bool {
	if !i.IsHere() {
		return true
	}
	fields, err := StatOf(i.Pid)
	if err != nil {
		return true
	}
	start, err := startOf(fields)
	return err != nil || !IsSameStart(start, i.Start) || isExiting(fields) && !i.otherThreadGoesOn(fields)
}

// isExiting is true where the flags of a thread cannot be told, too.
func isExiting(fields []string) bool {
	flags, err := strconv.ParseUint(fields[9-3], 10, 32)
	return err != nil || flags&exiting != 0
}

// otherThreadGoesOn says that a thread of a process does not exit, although its main thread does. The
// fields are those of the main thread.
func (i ID) otherThreadGoesOn(fields []string) bool {
	if !hasOtherThreads(fields) {
		return false
	}
	_, found := findThread(i.Pid, func(dir string) bool {
		fields, err := readStat(dir + "/stat")
		return err == nil && !isExiting(fields)
	})
	return found
}

// Is says that both are one process.
func (i ID) Is(other ID) bool {
	return i.Pid == other.Pid && i.Namespace == other.Namespace && IsSameStart(i.Start, other.Start)
}

// String is the form that [Parse] reads.
func (i ID) String() string { return fmt.Sprintln(i.Pid, i.Start, i.Namespace) }

// Parse reads the form that [ID.String] writes.
func Parse(text string) (i ID, err error) {
	_, err = fmt.Sscan(text, &i.Pid, &i.Start, &i.Namespace)
	return i, err
}

// Open opens a pidfd of the process (pidfd_open(2), Linux 5.3). The error is [fs.ErrNotExist] if the
// process has ended.
func (i ID) Open() (*os.File, error) {
	pidfd, err := unix.PidfdOpen(i.Pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil, fs.ErrNotExist
	}
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	// Only now is the number bound to a process: is it still that one?
	if !i.Lives() {
		return nil, errors.Join(fs.ErrNotExist, unix.Close(pidfd))
	}
	return os.NewFile(uintptr(pidfd), "pidfd"), nil
}

// End kills the process and returns when it is gone.
func (i ID) End(patience time.Duration) error {
	killed, err := i.Kill()
	if err != nil {
		return err
	}
	defer killed.Close()
	return killed.Await(patience)
}

// A Victim is a process that was killed. The zero value stands for a process that had ended before.
type Victim struct {
	pid   int
	pidfd *os.File
}

// Kill kills the process. The caller must close k.
func (i ID) Kill() (k Victim, err error) {
	if !i.IsHere() || i.Pid <= 1 {
		return k, fmt.Errorf("process %d cannot be told from others here", i.Pid)
	}
	pidfd, err := i.Open()
	if errors.Is(err, fs.ErrNotExist) {
		return k, nil
	}
	if err != nil {
		return k, err
	}
	if err := unix.PidfdSendSignal(int(pidfd.Fd()), unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return k, errors.Join(err, pidfd.Close())
	}
	return Victim{i.Pid, pidfd}, nil
}

// Close frees what k holds.
func (k Victim) Close() {
	if k.pidfd != nil {
		k.pidfd.Close()
	}
}

// Await returns when the process is gone.
func (k Victim) Await(patience time.Duration) error {
	if k.pidfd == nil {
		return nil
	}
	ended, err := AwaitExit(int(k.pidfd.Fd()), patience)
	if err == nil && !ended {
		err = fmt.Errorf("process %d was killed and does not end", k.pid)
	}
	return err
}

// AwaitExit waits until the process of a pidfd has ended: the pidfd becomes readable then
// (pidfd_open(2), Linux 5.3). ended is false if the process takes longer than the patience.
func AwaitExit(pidfd int, patience time.Duration) (ended bool, err error) {
	for deadline := time.Now().Add(patience); ; {
		left := time.Until(deadline)
		if left <= 0 {
			return false, nil
		}
		fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(left.Milliseconds())+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false, fmt.Errorf("poll pidfd: %w", err)
		}
		if n > 0 {
			return true, nil
		}
	}
}

// IsHere says that the number of the process means something in this pid namespace.
func (i ID) IsHere() bool {
	here, err := ownNamespace()
	return err == nil && here == i.Namespace
}

// ownNamespace names the pid namespace of this process. A process stays in its pid namespace
// (pid_namespaces(7)), so ownNamespace remembers the name.
func ownNamespace() (string, error) {
	return ownNamespaceName.get(func() (string, error) { return os.Readlink("/proc/self/ns/pid") })
}

var ownNamespaceName fact[string]
