package kernel

import (
	"runtime"
	"syscall"
	"unsafe"
)

// callList has the calls of a child and their results. It lies in memory that both
// processes see and holds no Go pointers.
type callList struct {
	length uintptr
	gate   uintptr // where the byte goes that the child waits for
	calls  [maxCalls]systemCall
}

type systemCall struct {
	number uintptr
	args   [6]uintptr
	// from is, for an argument that is the result of an earlier call, that
	// call's position plus one.
	from [6]uintptr
	// wanted is the error that counts as success; 0 is none.
	wanted uintptr

	state, result, errno uintptr
}

// States of a call. The child ends at the first that fails.
const (
	notBegun = iota
	begun
	returned
)

const maxCalls = 16

// fork makes a child with clone(2)'s flags, which makes the calls of the list
// and exits. If waits is set, it first reads a byte from the pipe.
//
// The child has one thread, a copy of the calling one, while the memory it got
// may be in any state that the other threads left it in: so it may not
// allocate, grow its stack, write a pointer or take a lock. It makes raw
// system calls on its own stack frame and on the shared list, as the Go
// runtime's own forkAndExecInChild does, and exits. The caller has blocked all
// signals and locked its thread.
//
//go:noinline
//go:norace
//go:nosplit
func fork(flags uintptr, waits bool, pipeRead, pipeWrite uintptr, list *callList) (pid uintptr, errno syscall.Errno) {
	if runtime.GOARCH == "s390x" {
		pid, _, errno = syscall.RawSyscall6(syscall.SYS_CLONE, 0, flags, 0, 0, 0, 0)
	} else {
		pid, _, errno = syscall.RawSyscall6(syscall.SYS_CLONE, flags, 0, 0, 0, 0, 0)
	}
	if errno != 0 || pid != 0 {
		return pid, errno
	}
	// The child must not outlive a parent that is killed meanwhile.
	syscall.RawSyscall6(syscall.SYS_PRCTL, syscall.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0, 0, 0, 0)
	if waits {
		syscall.RawSyscall(syscall.SYS_CLOSE, pipeWrite, 0, 0)
		n, _, _ := syscall.RawSyscall(syscall.SYS_READ, pipeRead, uintptr(unsafe.Pointer(&list.gate)), 1)
		if n != 1 {
			exit()
		}
	}
	for i := uintptr(0); i < list.length && i < maxCalls; i++ {
		c := &list.calls[i]
		for j := range c.args {
			if from := c.from[j]; from > 0 && from <= maxCalls {
				c.args[j] = list.calls[from-1].result
			}
		}
		c.state = begun
		result, _, e := syscall.RawSyscall6(c.number, c.args[0], c.args[1], c.args[2], c.args[3], c.args[4], c.args[5])
		c.result, c.errno, c.state = result, uintptr(e), returned
		if c.errno != c.wanted {
			break
		}
	}
	exit()
	return 0, 0
}

//go:norace
//go:nosplit
func exit() {
	for {
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
	}
}
