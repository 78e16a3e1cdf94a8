package gateway

import (
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process/worker"
)

// allowedCalls are the allowed system calls beyond those of the Go runtime: those of sockets that exist. Calls with
// a condition are in [conditions]. The list lacks execve, ptrace, mount, setns, unshare, kill, prctl, and
// all calls that change a file by its name.
func allowedCalls() []uint32 {
	return []uint32{
		// descriptors
		unix.SYS_NEWFSTATAT, unix.SYS_FCNTL, unix.SYS_DUP3, unix.SYS_PIPE2, unix.SYS_SPLICE,
		// sockets
		unix.SYS_BIND, unix.SYS_CONNECT, unix.SYS_ACCEPT4, unix.SYS_SHUTDOWN, unix.SYS_SENDTO, unix.SYS_RECVFROM,
		unix.SYS_SENDMSG, unix.SYS_RECVMSG, unix.SYS_GETSOCKOPT, unix.SYS_SETSOCKOPT, unix.SYS_GETSOCKNAME,
		unix.SYS_GETPEERNAME,
	}
}

func conditions() []worker.Condition {
	return []worker.Condition{
		{Call: unix.SYS_OPENAT, Argument: 2, Mask: unix.O_ACCMODE | unix.O_CREAT | unix.O_TRUNC | unix.O_PATH, Values: []uint32{unix.O_RDONLY}},
		{Call: unix.SYS_SOCKET, Argument: 0, Mask: ^uint32(0), Values: []uint32{unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}},
	}
}
