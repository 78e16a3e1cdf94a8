package doctor

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// A forbiddenCall is a system call that the default profile refuses, with
// arguments for which the kernel itself has another error, or no harm.
type forbiddenCall struct {
	name   string
	number uintptr
	args   [6]uintptr
	errno  unix.Errno // of the refusal
}

const (
	invalid       = ^uintptr(0)
	setModeFilter = 1 // SECCOMP_SET_MODE_FILTER
)

// rootPath is "/", for the kernel. A variable of the package stays where it is.
var rootPath = [...]byte{'/', 0}

// forbiddenCalls are those that docs/seccomp.md says generated code has no use
// for, and the ways to new namespaces, mounts and modules.
func forbiddenCalls() []forbiddenCall {
	refused := func(name string, number uintptr, args ...uintptr) forbiddenCall {
		c := forbiddenCall{name: name, number: number, errno: unix.EPERM}
		copy(c.args[:], args)
		return c
	}
	calls := []forbiddenCall{
		refused("ptrace", unix.SYS_PTRACE, invalid),
		refused("process_vm_readv", unix.SYS_PROCESS_VM_READV, invalid, 0, 0, 0, 0, invalid),
		refused("process_vm_writev", unix.SYS_PROCESS_VM_WRITEV, invalid, 0, 0, 0, 0, invalid),
		refused("bpf", unix.SYS_BPF, invalid),
		refused("userfaultfd", unix.SYS_USERFAULTFD, invalid),
		refused("io_uring_setup", unix.SYS_IO_URING_SETUP),
		refused("io_uring_enter", unix.SYS_IO_URING_ENTER, invalid),
		refused("keyctl", unix.SYS_KEYCTL, invalid),
		refused("add_key", unix.SYS_ADD_KEY),
		refused("request_key", unix.SYS_REQUEST_KEY),
		refused("perf_event_open", unix.SYS_PERF_EVENT_OPEN),
		refused("name_to_handle_at", unix.SYS_NAME_TO_HANDLE_AT, invalid),
		refused("vmsplice", unix.SYS_VMSPLICE, invalid),
		refused("kcmp", unix.SYS_KCMP, invalid, invalid),
		refused("pidfd_getfd", unix.SYS_PIDFD_GETFD, invalid),
		refused("personality", unix.SYS_PERSONALITY, 0x0040000), // ADDR_NO_RANDOMIZE
		refused("mount", unix.SYS_MOUNT),
		refused("fsopen", unix.SYS_FSOPEN),
		refused("open_tree", unix.SYS_OPEN_TREE, invalid),
		refused("unshare", unix.SYS_UNSHARE, invalid),
		refused("setns", unix.SYS_SETNS, invalid),
		// The filter lets it through, for PID 1. The command lacks the capability, which
		// the kernel checks once the path is known.
		refused("chroot", unix.SYS_CHROOT, uintptr(unsafe.Pointer(&rootPath[0]))),
		refused("init_module", unix.SYS_INIT_MODULE),
		refused("finit_module", unix.SYS_FINIT_MODULE, invalid),
		refused("fanotify_mark", unix.SYS_FANOTIFY_MARK, invalid),
		refused("ioctl TIOCSTI", unix.SYS_IOCTL, invalid, unix.TIOCSTI),
		refused("ioctl TIOCLINUX", unix.SYS_IOCTL, invalid, 0x541c),
		{"clone3", unix.SYS_CLONE3, [6]uintptr{0, 0}, unix.ENOSYS},
		// The kernel counts the memory of these for the whole host.
		{"io_setup", unix.SYS_IO_SETUP, [6]uintptr{}, unix.ENOSYS},
		{"seccomp", unix.SYS_SECCOMP, [6]uintptr{setModeFilter}, unix.EINVAL},
		{"prctl PR_SET_SECCOMP", unix.SYS_PRCTL, [6]uintptr{unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER}, unix.EINVAL},
		{"setsockopt SO_ATTACH_FILTER", unix.SYS_SETSOCKOPT, [6]uintptr{invalid, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER}, unix.ENOPROTOOPT},
		{"fcntl F_SETLEASE", unix.SYS_FCNTL, [6]uintptr{invalid, unix.F_SETLEASE}, unix.EINVAL},
		{"fcntl F_NOTIFY", unix.SYS_FCNTL, [6]uintptr{invalid, unix.F_NOTIFY}, unix.EINVAL},
	}
	for name, family := range map[string]uintptr{
		"AF_ALG": unix.AF_ALG, "AF_VSOCK": unix.AF_VSOCK, "AF_PACKET": unix.AF_PACKET, "AF_KEY": unix.AF_KEY,
		"AF_XDP": unix.AF_XDP, "AF_RDS": unix.AF_RDS, "AF_TIPC": unix.AF_TIPC, "AF_CAN": unix.AF_CAN,
		"AF_BLUETOOTH": unix.AF_BLUETOOTH, "AF_NFC": unix.AF_NFC,
	} {
		calls = append(calls, refused("socket "+name, unix.SYS_SOCKET, family, invalid>>1)) // no such type
	}
	return calls
}

// tryCalls makes the calls and names those that were not refused.
func tryCalls() (allowed []string, refusals int) {
	for _, c := range forbiddenCalls() {
		_, _, errno := unix.Syscall6(c.number, c.args[0], c.args[1], c.args[2], c.args[3], c.args[4], c.args[5])
		if errno == c.errno {
			refusals++
		} else {
			allowed = append(allowed, c.name)
		}
	}
	return allowed, refusals
}
