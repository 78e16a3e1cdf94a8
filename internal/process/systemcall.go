package process

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// A SystemCall is the system call at which a traced thread has stopped: the begin of struct
// ptrace_syscall_info, linux/ptrace.h. It is alike on every architecture.
type SystemCall struct {
	Op     uint8 // unix.PTRACE_SYSCALL_INFO_ENTRY or _EXIT
	_      [3]uint8
	_      uint32 // architecture
	_, _   uint64 // instruction and stack pointer
	Number uint64 // at the entry, as the arguments
	Args   [6]uint64
}

// SystemCallOf asks for the system call of a stopped thread. The caller is the thread's tracer
// (ptrace(2), PTRACE_GET_SYSCALL_INFO, Linux 5.3).
func SystemCallOf(tid int) (c SystemCall, err error) {
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(tid),
		unsafe.Sizeof(c), uintptr(unsafe.Pointer(&c)), 0, 0)
	if errno != 0 {
		return c, errno
	}
	return c, nil
}
