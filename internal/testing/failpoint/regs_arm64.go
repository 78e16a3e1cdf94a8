package failpoint

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// skipCall has a thread that is about to make a system call make none (NT_ARM_SYSTEM_CALL of
// ptrace(2), linux/elf.h).
func skipCall(tid int) error {
	const set = 0x404
	none := int32(-1)
	number := unix.Iovec{Base: (*byte)(unsafe.Pointer(&none)), Len: uint64(unsafe.Sizeof(none))}
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_SETREGSET, uintptr(tid), set, uintptr(unsafe.Pointer(&number)), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// setResult gives a thread the error of a system call that returns.
func setResult(tid int, err unix.Errno) error {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &r); err != nil {
		return err
	}
	r.Regs[0] = -uint64(err)
	return unix.PtraceSetRegs(tid, &r)
}
