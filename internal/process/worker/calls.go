package worker

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data (seccomp(2)).
const (
	offsetCall = 0
	offsetArch = 4
	offsetArgs = 16
)

// runtimeCalls are the system calls of the Go runtime. The calls with a condition are in
// [runtimeConditions].
func runtimeCalls() []uint32 {
	return append(archCalls(),
		// memory, threads and time
		unix.SYS_MUNMAP, unix.SYS_MADVISE, unix.SYS_BRK,
		unix.SYS_FUTEX, unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY, unix.SYS_GETTID, unix.SYS_GETPID,
		unix.SYS_SET_ROBUST_LIST, unix.SYS_RSEQ, unix.SYS_SIGALTSTACK, unix.SYS_RT_SIGACTION,
		unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_RESTART_SYSCALL, unix.SYS_EXIT, unix.SYS_EXIT_GROUP,
		unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_CLOCK_GETTIME, unix.SYS_GETTIMEOFDAY,
		unix.SYS_GETRANDOM, unix.SYS_UNAME, unix.SYS_GETUID, unix.SYS_GETEUID, unix.SYS_GETGID, unix.SYS_GETEGID,
		// descriptors
		unix.SYS_READ, unix.SYS_WRITE, unix.SYS_READV, unix.SYS_WRITEV, unix.SYS_CLOSE, unix.SYS_FSTAT, unix.SYS_LSEEK,
		unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EVENTFD2)
}

func runtimeConditions() []Condition {
	const namespaces = unix.CLONE_NEWCGROUP | unix.CLONE_NEWIPC | unix.CLONE_NEWNET | unix.CLONE_NEWNS |
		unix.CLONE_NEWPID | unix.CLONE_NEWUSER | unix.CLONE_NEWUTS
	return []Condition{
		{unix.SYS_CLONE, 0, unix.CLONE_THREAD | namespaces, []uint32{unix.CLONE_THREAD}},
		{unix.SYS_MMAP, 2, unix.PROT_EXEC, []uint32{0}},
		{unix.SYS_MPROTECT, 2, unix.PROT_EXEC, []uint32{0}},
		{unix.SYS_TGKILL, 0, ^uint32(0), []uint32{uint32(os.Getpid())}},
	}
}

// A Condition allows a call if an argument, under a mask, has one of the values.
type Condition struct {
	Call     uint32
	Argument uint32
	Mask     uint32
	Values   []uint32
}

// program is the filter: any other call gets EPERM. clone3 gets ENOSYS, since its flags cannot be read
// here: the C library uses clone then.
func program(calls []uint32, conditions []Condition) []unix.SockFilter {
	const (
		load = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		and  = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
		is   = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		end  = unix.BPF_RET | unix.BPF_K
	)
	p := []unix.SockFilter{
		{Code: load, K: offsetArch},
		{Code: is, K: auditArch, Jt: 1},
		{Code: end, K: unix.SECCOMP_RET_KILL_PROCESS},
		{Code: load, K: offsetCall},
	}
	for _, call := range calls {
		p = append(p, unix.SockFilter{Code: is, K: call, Jf: 1}, unix.SockFilter{Code: end, K: unix.SECCOMP_RET_ALLOW})
	}
	p = append(p, unix.SockFilter{Code: is, K: unix.SYS_CLONE3, Jf: 1},
		unix.SockFilter{Code: end, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)})
	for _, c := range conditions {
		length := 2 + 2*len(c.Values) + 1
		p = append(p, unix.SockFilter{Code: is, K: c.Call, Jf: uint8(length)},
			unix.SockFilter{Code: load, K: offsetArgs + 8*c.Argument}, // the low half: both machines are little endian
			unix.SockFilter{Code: and, K: c.Mask})
		for _, value := range c.Values {
			p = append(p, unix.SockFilter{Code: is, K: value, Jf: 1}, unix.SockFilter{Code: end, K: unix.SECCOMP_RET_ALLOW})
		}
		p = append(p, unix.SockFilter{Code: end, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)})
	}
	return append(p, unix.SockFilter{Code: end, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)})
}

// FilterCalls filters the system calls of all threads, for ever. It allows the calls of the Go runtime,
// the given calls, and the calls that meet their condition. The process must have no_new_privs.
func FilterCalls(calls []uint32, conditions []Condition) error {
	p := program(append(runtimeCalls(), calls...), append(runtimeConditions(), conditions...))
	return filterAllThreads(p, 0)
}

// filterAllThreads loads a seccomp filter into all threads. The flags are added to SECCOMP_FILTER_FLAG_TSYNC.
func filterAllThreads(p []unix.SockFilter, flags uintptr) error {
	f := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_TSYNC|flags, uintptr(unsafe.Pointer(&f)))
	switch {
	case errno != 0:
		return os.NewSyscallError("seccomp", errno)
	case thread != 0:
		return fmt.Errorf("thread %d takes no filter of system calls", thread)
	}
	return nil
}
