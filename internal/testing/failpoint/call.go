package failpoint

import (
	"bytes"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
)

// A kind says how a system call's arguments name its object.
type kind int

const (
	plain   kind = iota // they do not
	path                // a path
	handle              // a descriptor
	writing             // a descriptor, and it counts only if the file matters
	open                // a path, and it counts only if it may make a file
	openHow             // the same, flags in a struct
	fork                // it counts only if it makes a process
	forkArg             // the same, flags in a struct
)

// A call is a system call with side effects.
type call struct {
	name string
	kind kind
	arg  int // the argument that names the object
	// flags is the argument that holds flags, or their address.
	flags int
}

// table has the system calls with side effects beyond the program's memory and
// descriptors, of those that Go and a statically linked libc make.
var table = map[uint64]call{
	unix.SYS_MKDIRAT: {"mkdirat", path, 1, 0}, unix.SYS_UNLINKAT: {"unlinkat", path, 1, 0},
	unix.SYS_RENAMEAT: {"renameat", path, 3, 0}, unix.SYS_RENAMEAT2: {"renameat2", path, 3, 0},
	unix.SYS_SYMLINKAT: {"symlinkat", path, 2, 0}, unix.SYS_LINKAT: {"linkat", path, 3, 0},
	unix.SYS_MKNODAT: {"mknodat", path, 1, 0}, unix.SYS_FCHMODAT: {"fchmodat", path, 1, 0},
	unix.SYS_FCHOWNAT: {"fchownat", path, 1, 0}, unix.SYS_FCHMOD: {"fchmod", handle, 0, 0},
	unix.SYS_FCHOWN: {"fchown", handle, 0, 0}, unix.SYS_FTRUNCATE: {"ftruncate", handle, 0, 0},
	unix.SYS_UTIMENSAT: {"utimensat", path, 1, 0}, unix.SYS_FLOCK: {"flock", handle, 0, 0},
	unix.SYS_OPENAT: {"openat", open, 1, 2}, unix.SYS_OPENAT2: {"openat2", openHow, 1, 2},
	unix.SYS_WRITE: {"write", writing, 0, 0}, unix.SYS_PWRITE64: {"pwrite64", writing, 0, 0},
	unix.SYS_FSETXATTR: {"fsetxattr", handle, 0, 0}, unix.SYS_FREMOVEXATTR: {"fremovexattr", handle, 0, 0},
	unix.SYS_COPY_FILE_RANGE: {"copy_file_range", handle, 2, 0}, unix.SYS_SENDFILE: {"sendfile", handle, 0, 0},
	unix.SYS_SPLICE: {"splice", handle, 2, 0},

	unix.SYS_MOUNT: {"mount", path, 1, 0}, unix.SYS_UMOUNT2: {"umount2", path, 0, 0},
	unix.SYS_MOVE_MOUNT: {"move_mount", path, 3, 0}, unix.SYS_FSOPEN: {"fsopen", path, 0, 0},
	unix.SYS_FSCONFIG: {"fsconfig", path, 2, 0}, unix.SYS_FSMOUNT: {"fsmount", handle, 0, 0},
	unix.SYS_OPEN_TREE: {"open_tree", path, 1, 0}, unix.SYS_MOUNT_SETATTR: {"mount_setattr", path, 1, 0},
	unix.SYS_UNSHARE: {"unshare", plain, 0, 0}, unix.SYS_SETNS: {"setns", handle, 0, 0},

	unix.SYS_CLONE: {"clone", fork, 0, 0}, unix.SYS_CLONE3: {"clone3", forkArg, 0, 0},
	unix.SYS_EXECVE: {"execve", path, 0, 0}, unix.SYS_KILL: {"kill", plain, 0, 0},
	unix.SYS_PIDFD_SEND_SIGNAL: {"pidfd_send_signal", handle, 0, 0},

	unix.SYS_BIND: {"bind", handle, 0, 0}, unix.SYS_CONNECT: {"connect", handle, 0, 0},
	unix.SYS_SENDTO: {"sendto", handle, 0, 0}, unix.SYS_SENDMSG: {"sendmsg", handle, 0, 0},
	unix.SYS_SHUTDOWN: {"shutdown", handle, 0, 0}, unix.SYS_MEMFD_CREATE: {"memfd_create", path, 0, 0},
	unix.SYS_BPF: {"bpf", plain, 0, 0}, unix.SYS_KEYCTL: {"keyctl", plain, 0, 0},
}

// sideEffect returns the point of a call that is about to be made, or nil.
func sideEffect(pid, tid int, info process.SystemCall) *Point {
	c, ok := table[info.Number]
	if !ok {
		return nil
	}
	p := &Point{Call: c.name}
	switch c.kind {
	case path:
		p.Object = text(tid, info.Args[c.arg])
	case handle:
		p.Object = described(pid, info.Args[c.arg])
	case writing:
		// Go's scheduler wakes itself through one.
		if p.Object = described(pid, info.Args[c.arg]); p.Object == "anon_inode:[eventfd]" {
			return nil
		}
	case open, openHow:
		flags := info.Args[c.flags]
		if c.kind == openHow {
			flags = word(tid, flags)
		}
		if flags&unix.O_CREAT == 0 && flags&unix.O_TMPFILE != unix.O_TMPFILE {
			return nil
		}
		p.Object = text(tid, info.Args[c.arg])
	case fork, forkArg:
		flags := info.Args[c.flags]
		if c.kind == forkArg {
			flags = word(tid, flags)
		}
		if flags&unix.CLONE_THREAD != 0 {
			return nil
		}
	}
	return p
}

// described names the file of a descriptor.
func described(pid int, fd uint64) string {
	name, _ := os.Readlink("/proc/" + strconv.Itoa(pid) + "/fd/" + strconv.Itoa(int(int32(fd))))
	return name
}

// text reads a string of the program, as far as the end of its page.
func text(tid int, addr uint64) string {
	const page = 4096
	data := memory(tid, addr, page-int(addr%page))
	if end := bytes.IndexByte(data, 0); end >= 0 {
		return string(data[:end])
	}
	return string(data)
}

// word reads an integer of the program.
func word(tid int, addr uint64) uint64 {
	data := memory(tid, addr, 8)
	if len(data) < 8 {
		return 0
	}
	return *(*uint64)(unsafe.Pointer(&data[0]))
}

func memory(tid int, addr uint64, length int) []byte {
	if addr == 0 {
		return nil
	}
	data := make([]byte, length)
	local := []unix.Iovec{{Base: &data[0], Len: uint64(length)}}
	n, err := unix.ProcessVMReadv(tid, local, []unix.RemoteIovec{{Base: uintptr(addr), Len: length}}, 0)
	if err != nil {
		return nil
	}
	return data[:n]
}
