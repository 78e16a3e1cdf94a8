package container

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
)

// errEnded says that the tracee child ended.
var errEnded = errors.New("the child that compiles it ended")

// A tracee is a child that stops at each of its main thread's system calls. All of its
// methods but kill are for the thread that started it.
type tracee struct {
	pid   int
	pidfd *os.File
	ended bool // reaped
}

// startTracee starts this program anew. The child stands still at its first
// instruction.
func startTracee(input, output *os.File) (*tracee, error) {
	pid, err := syscall.ForkExec("/proc/self/exe", []string{os.Args[0], compileArgument}, &syscall.ProcAttr{
		Env:   append(os.Environ(), compileVariable+"=1"),
		Files: []uintptr{input.Fd(), output.Fd(), output.Fd()},
		// SIGKILL should this thread's process die before EXITKILL is set.
		// A terminal's signals are its parent's to deal with, hence the session.
		Sys: &syscall.SysProcAttr{Ptrace: true, Pdeathsig: syscall.SIGKILL, Setsid: true},
	})
	// By Yama, by a seccomp filter, or because strace(1) traces all of us.
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		err = fmt.Errorf("%w: %w", ErrNoTrace, err)
	}
	if err != nil {
		return nil, fmt.Errorf("start a child: %w", err)
	}
	t := &tracee{pid: pid}
	if t.pidfd, err = openPidFD(pid); err != nil {
		_ = unix.Kill(pid, unix.SIGKILL) // not reaped, so it is nobody else
		t.end()
		return nil, err
	}
	_, err = t.wait()
	if err == nil {
		err = unix.PtraceSetOptions(pid, unix.PTRACE_O_EXITKILL|unix.PTRACE_O_TRACESYSGOOD)
	}
	if err != nil {
		t.end()
		return nil, fmt.Errorf("trace a child: %w", err)
	}
	return t, nil
}

// kill may be called by any thread until end has returned.
func (t *tracee) kill() { _ = unix.PidfdSendSignal(int(t.pidfd.Fd()), unix.SIGKILL, nil, 0) }

// end leaves nothing of the child.
func (t *tracee) end() {
	if t.pidfd != nil {
		t.kill()
	}
	for !t.ended {
		_, _ = t.wait()
	}
	if t.pidfd != nil {
		t.pidfd.Close()
	}
}

// wait returns how the child has stopped, or errEnded.
func (t *tracee) wait() (unix.WaitStatus, error) {
	for {
		var ws unix.WaitStatus
		_, err := unix.Wait4(t.pid, &ws, unix.WALL, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil: // somebody else has reaped it
			t.ended = true
			return 0, fmt.Errorf("wait for a child: %w", err)
		case ws.Exited() || ws.Signaled():
			t.ended = true
			return 0, errEnded
		}
		return ws, nil
	}
}

// filter lets the child run until it hands a filter to the kernel.
func (t *tracee) filter() (Filter, error) {
	signal := 0
	for {
		if err := unix.PtraceSyscall(t.pid, signal); err != nil && !errors.Is(err, unix.ESRCH) {
			return Filter{}, fmt.Errorf("trace a child: %w", err)
		}
		ws, err := t.wait()
		if err != nil {
			return Filter{}, err
		}
		const syscallStop = int(unix.SIGTRAP) | 0x80 // PTRACE_O_TRACESYSGOOD
		if signal = int(ws.StopSignal()); signal != syscallStop {
			continue // a signal of its own, to be delivered
		}
		signal = 0
		call, err := process.SystemCallOf(t.pid)
		if err != nil {
			return Filter{}, fmt.Errorf("ask for a child's system call: %w", err)
		}
		if flags, program, loads := filterIn(call); loads {
			return t.read(flags, program)
		}
	}
}

// filterIn tells whether a call loads a filter. libseccomp passes none when it probes the
// kernel.
func filterIn(c process.SystemCall) (flags uint32, program uintptr, loads bool) {
	switch {
	case c.Op != unix.PTRACE_SYSCALL_INFO_ENTRY:
	case c.Number == unix.SYS_SECCOMP && c.Args[0] == unix.SECCOMP_SET_MODE_FILTER:
		flags, program = uint32(c.Args[1]), uintptr(c.Args[2])
	case c.Number == unix.SYS_PRCTL && c.Args[0] == unix.PR_SET_SECCOMP && c.Args[1] == unix.SECCOMP_MODE_FILTER:
		program = uintptr(c.Args[2])
	}
	return flags, program, program != 0
}

// read copies the filter from the struct sock_fprog at address.
func (t *tracee) read(flags uint32, address uintptr) (Filter, error) {
	var head [16]byte // of 64-bit machines
	if _, err := unix.PtracePeekData(t.pid, address, head[:]); err != nil {
		return Filter{}, fmt.Errorf("read the filter of a child: %w", err)
	}
	count := int(binary.NativeEndian.Uint16(head[:]))
	program := make([]byte, count*unix.SizeofSockFilter)
	if _, err := unix.PtracePeekData(t.pid, uintptr(binary.NativeEndian.Uint64(head[8:])), program); err != nil {
		return Filter{}, fmt.Errorf("read the filter of a child: %w", err)
	}
	return Filter{Flags: flags, Program: program}, nil
}
