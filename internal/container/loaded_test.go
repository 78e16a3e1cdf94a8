package container

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// ptraceSeccompFilter reads the filter that a traced and stopped process loaded
// first (ptrace(2), PTRACE_SECCOMP_GET_FILTER, Linux 4.4).
func ptraceSeccompFilter(pid int, program []unix.SockFilter) (int, error) {
	count, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SECCOMP_GET_FILTER, uintptr(pid),
		0, uintptr(unsafe.Pointer(&program[0])), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(count), nil
}

// binaryOf are the bytes of an instruction.
func binaryOf(i unix.SockFilter) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&i)), unix.SizeofSockFilter)
}
