package compile

import (
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func answered(errno unix.Errno, name string, try func(dir string) error) probe {
	return probe{name, errno, errno, errno, try}
}

// quotaProbes take something of the whole host. Each takes one, and gives it back.
func quotaProbes() []probe {
	const none = ^uintptr(0) // no descriptor: EBADF without a filter
	return []probe{
		absent("io_setup", func(string) error {
			var context uintptr
			if err := call(unix.SYS_IO_SETUP, 1, pointer(&context)); err != nil {
				return err
			}
			return call(unix.SYS_IO_DESTROY, context)
		}),
		answered(unix.EINVAL, "a filter", func(string) error {
			const getActionAvail = 2
			kill := uint32(0x8000_0000)
			return call(unix.SYS_SECCOMP, getActionAvail, 0, pointer(&kill))
		}),
		answered(unix.EINVAL, "a lease", lease(unix.F_SETLEASE)),
		answered(unix.EINVAL, "a lease, high bits set", lease(unix.F_SETLEASE|highBits)),
		answered(unix.EINVAL, "F_NOTIFY", func(dir string) error {
			fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return call(unix.SYS_FCNTL, uintptr(fd), unix.F_NOTIFY, dnCreate)
		}),
		allowed("fcntl for a pipe's size", func(string) error {
			var ends [2]int
			if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
				return err
			}
			defer unix.Close(ends[0])
			defer unix.Close(ends[1])
			return call(unix.SYS_FCNTL, uintptr(ends[0]), unix.F_SETPIPE_SZ, 4096)
		}),
		answered(unix.ENOPROTOOPT, "a socket's filter", attachFilter(unix.SO_ATTACH_FILTER)),
		answered(unix.ENOPROTOOPT, "a socket's filter, high bits set", attachFilter(unix.SO_ATTACH_FILTER|highBits)),
		answered(unix.ENOPROTOOPT, "a filter of a group of sockets", attachFilter(unix.SO_ATTACH_REUSEPORT_CBPF)),
		answered(unix.ENOPROTOOPT, "a socket's program", func(string) error {
			return call(unix.SYS_SETSOCKOPT, none, unix.SOL_SOCKET, unix.SO_ATTACH_BPF, 0, 0)
		}),
		answered(unix.ENOPROTOOPT, "a program of a group of sockets", func(string) error {
			return call(unix.SYS_SETSOCKOPT, none, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_EBPF, 0, 0)
		}),
		answered(unix.ENOPROTOOPT, "an IPv6 flow label", func(string) error {
			return call(unix.SYS_SETSOCKOPT, none, unix.SOL_IPV6, flowLabelMgr, 0, 0)
		}),
		answered(unix.ENOPROTOOPT, "a longer life of a closed TCP socket", func(string) error {
			return call(unix.SYS_SETSOCKOPT, none, unix.SOL_TCP, unix.TCP_LINGER2, 0, 0)
		}),
		allowed("a socket's buffer", func(string) error {
			ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(ends[0])
			defer unix.Close(ends[1])
			return unix.SetsockoptInt(ends[0], unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<16)
		}),
	}
}

const (
	flowLabelMgr = 32  // IPV6_FLOWLABEL_MGR, linux/in6.h
	dnCreate     = 0x4 // DN_CREATE, linux/fcntl.h

	lastCommand = 1038 // F_SET_FILE_RW_HINT, the last one of Linux 6.18
)

func lease(command uintptr) func(string) error {
	return func(dir string) error {
		fd, err := unix.Open(filepath.Join(dir, "leased"), unix.O_RDONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return call(unix.SYS_FCNTL, uintptr(fd), command, unix.F_RDLCK)
	}
}

// attachFilter attaches one filter of one instruction, which goes with its socket.
func attachFilter(option uintptr) func(string) error {
	return func(string) error {
		ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(ends[0])
		defer unix.Close(ends[1])
		all := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0xffff}
		program := unix.SockFprog{Len: 1, Filter: &all}
		pinned = append(pinned, &all)
		return call(unix.SYS_SETSOCKOPT, uintptr(ends[0]), unix.SOL_SOCKET, option,
			pointer(&program), unsafe.Sizeof(program))
	}
}

func TestFcntlRefusesLeasesAndLaterCommands(t *testing.T) {
	onMachines(t, "fcntl", func(t *testing.T, _ string, allows func(...uint64) bool) {
		for command := range uint64(2048) {
			want := command != unix.F_SETLEASE && command != unix.F_NOTIFY && command <= lastCommand
			if allows(3, command) != want || allows(3, command|highBits) != want {
				t.Fatalf("fcntl %d: allowed is %v", command, !want)
			}
		}
		for bit := 11; bit < 32; bit++ { // no commands to any kernel
			if allows(3, unix.F_SETLEASE|1<<bit) {
				t.Errorf("fcntl %d is allowed", unix.F_SETLEASE|1<<bit)
			}
		}
	})
}

func TestSocketOptionsWithoutFilters(t *testing.T) {
	refused := map[[2]uint64]bool{
		{unix.SOL_SOCKET, unix.SO_ATTACH_FILTER}: true, {unix.SOL_SOCKET, unix.SO_ATTACH_BPF}: true,
		{unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF}: true, {unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_EBPF}: true,
		{unix.SOL_IPV6, flowLabelMgr}: true, {unix.SOL_TCP, unix.TCP_LINGER2}: true,
	}
	onMachines(t, "setsockopt", func(t *testing.T, _ string, allows func(...uint64) bool) {
		for level := range uint64(512) {
			for option := range uint64(256) {
				want := !refused[[2]uint64{level, option}]
				if allows(3, level, option) != want || allows(3, level|highBits, option|highBits) != want {
					t.Fatalf("setsockopt %d, %d: allowed is %v", level, option, !want)
				}
			}
		}
	})
}
