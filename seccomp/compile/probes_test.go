package compile

import (
	"os"
	"os/exec"
	"unsafe"

	"golang.org/x/sys/unix"
)

// highBits are above the int that the kernel reads, and part of the 64 bits
// that a filter sees.
const highBits = 0x7_0000_0000

// pinned keeps what the kernel was given the address of: on the heap, which does
// not move, and alive.
var pinned []any

func pointer[T any](p *T) uintptr {
	pinned = append(pinned, p)
	return uintptr(unsafe.Pointer(p))
}

func processProbes() []probe {
	self := uintptr(os.Getpid())
	return []probe{
		debugOnly("ptrace", func(string) error { return startTraced() }),
		debugOnly("process_vm_readv", func(string) error { return ownMemory(unix.SYS_PROCESS_VM_READV) }),
		debugOnly("process_vm_writev", func(string) error { return ownMemory(unix.SYS_PROCESS_VM_WRITEV) }),
		debugOnly("kcmp", func(string) error { return call(unix.SYS_KCMP, self, self, 0, 0, 0) }),
		debugOnly("pidfd_getfd", func(string) error {
			fd, err := unix.PidfdOpen(os.Getpid(), 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return closing(callResult(unix.SYS_PIDFD_GETFD, uintptr(fd), 0, 0))
		}),
		debugOnly("personality without address randomisation", personality(0x40000)),
		debugOnly("personality without it, high bits set", personality(0x40000|highBits)),
		refused("personality that maps page zero", personality(0x100000)),
		refused("personality of another system", personality(0x0006)),
		notStrict("personality, native", personality(0)),
		notStrict("personality, asked for", personality(0xffffffff)),
		notStrict("personality, asked for with sign", personality(^uintptr(0))),

		allowed("fork and exec", func(string) error { return startIn(0) }),
		allowed("pidfd_open, pidfd_send_signal", func(string) error {
			fd, err := unix.PidfdOpen(os.Getpid(), 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.PidfdSendSignal(fd, 0, nil, 0)
		}),
		allowed("setresuid to what it is", func(string) error {
			return unix.Setresuid(unix.Getuid(), unix.Getuid(), unix.Getuid())
		}),
		allowed("setresgid to what it is", func(string) error {
			return unix.Setresgid(unix.Getgid(), unix.Getgid(), unix.Getgid())
		}),
		allowed("setgroups", func(string) error { return call(unix.SYS_SETGROUPS, 0, 0) }),
		allowed("capget, capset", func(string) error {
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var data [2]unix.CapUserData
			if err := unix.Capget(&header, &data[0]); err != nil {
				return err
			}
			return unix.Capset(&header, &data[0])
		}),
		allowed("prctl", func(string) error { return unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0) }),
		allowed("prlimit64", func(string) error {
			var limit unix.Rlimit
			if err := unix.Prlimit(0, unix.RLIMIT_CORE, nil, &limit); err != nil {
				return err
			}
			return unix.Prlimit(0, unix.RLIMIT_CORE, &limit, nil)
		}),
		allowed("landlock", func(string) error {
			const version = 1 // LANDLOCK_CREATE_RULESET_VERSION
			return call(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, version)
		}),
		allowed("signalfd, timerfd, eventfd, epoll", func(string) error {
			var set unix.Sigset_t
			if err := closing(unix.Signalfd(-1, &set, unix.SFD_CLOEXEC)); err != nil {
				return err
			}
			if err := closing(unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC)); err != nil {
				return err
			}
			if err := closing(unix.Eventfd(0, unix.EFD_CLOEXEC)); err != nil {
				return err
			}
			return closing(unix.EpollCreate1(unix.EPOLL_CLOEXEC))
		}),
	}
}

func personality(domain uintptr) func(string) error {
	return func(string) error { return call(unix.SYS_PERSONALITY, domain) }
}

// startTraced starts a process that is traced, as a debugger does.
func startTraced() error {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{childMode + "=exit"}
	cmd.SysProcAttr = &unix.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		return errnoOnly(err)
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(cmd.Process.Pid, &status, 0, nil); err != nil {
		return err
	}
	if err := unix.PtraceDetach(cmd.Process.Pid); err != nil {
		return err
	}
	return cmd.Wait()
}

// ownMemory moves bytes between two places of this process as if it were
// another.
func ownMemory(number uintptr) error {
	from, to := []byte("here"), make([]byte, 4)
	local := unix.Iovec{Base: &to[0], Len: 4}
	remote := unix.Iovec{Base: &from[0], Len: 4}
	return call(number, uintptr(os.Getpid()), pointer(&local), 1, pointer(&remote), 1, 0)
}

// startIn starts a process with clone(2) and these namespace flags, and waits.
func startIn(flags uintptr) error {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{childMode + "=exit"}
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: flags}
	return errnoOnly(cmd.Run())
}

func namespaceProbes() []probe {
	probes := []probe{
		absent("clone3", func(string) error { return call(unix.SYS_CLONE3, 0, 0) }),
		refused("setns", func(string) error {
			fd, err := unix.Open("/proc/self/ns/uts", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Setns(fd, unix.CLONE_NEWUTS)
		}),
		// CLONE_NEWTIME's bit; without CLONE_SIGHAND no kernel makes a thread.
		refused("clone of a time namespace", func(string) error {
			return call(unix.SYS_CLONE, unix.CLONE_NEWTIME|unix.CLONE_THREAD)
		}),
		refused("clone of a user namespace, high bits set", func(string) error {
			return call(unix.SYS_CLONE, unix.CLONE_NEWUSER|unix.CLONE_THREAD|highBits)
		}),
	}
	for _, namespace := range []struct {
		name string
		flag uintptr
	}{
		{"user", unix.CLONE_NEWUSER},
		{"network", unix.CLONE_NEWNET},
		{"mount", unix.CLONE_NEWNS},
		{"pid", unix.CLONE_NEWPID},
		{"ipc", unix.CLONE_NEWIPC},
		{"uts", unix.CLONE_NEWUTS},
		{"cgroup", unix.CLONE_NEWCGROUP},
	} {
		probes = append(probes,
			refused("clone of a "+namespace.name+" namespace", func(string) error { return startIn(namespace.flag) }),
			refused("unshare of a "+namespace.name+" namespace", func(string) error {
				return call(unix.SYS_UNSHARE, namespace.flag)
			}))
	}
	return append(probes, refused("unshare of a time namespace", func(string) error {
		return call(unix.SYS_UNSHARE, unix.CLONE_NEWTIME)
	}))
}

// kernelProbes are calls that only reach for the kernel or the host. Where one
// would change something, its arguments are wrong: without the filter it is
// answered with another error, which shows that it came through.
func kernelProbes() []probe {
	const badPointer = 1
	root := []byte("/\x00")
	wrong := func(name string, number uintptr, args ...uintptr) probe {
		return refused(name, func(string) error { return call(number, args...) })
	}
	return []probe{
		refused("io_uring_setup", func(string) error {
			var params [120]byte
			return closing(callResult(unix.SYS_IO_URING_SETUP, 1, pointer(&params)))
		}),
		wrong("io_uring_enter", unix.SYS_IO_URING_ENTER, ^uintptr(0), 0, 0, 0, 0, 0),
		wrong("io_uring_register", unix.SYS_IO_URING_REGISTER, ^uintptr(0), 0, 0, 0),
		refused("userfaultfd", func(string) error {
			const userModeOnly = 1
			return closing(callResult(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|userModeOnly))
		}),
		wrong("keyctl", unix.SYS_KEYCTL, unix.KEYCTL_GET_KEYRING_ID, ^uintptr(0), 0),
		wrong("add_key", unix.SYS_ADD_KEY, badPointer, badPointer, 0, 0, 0),
		wrong("request_key", unix.SYS_REQUEST_KEY, badPointer, badPointer, 0, 0),
		wrong("bpf", unix.SYS_BPF, unix.BPF_PROG_LOAD, badPointer, 48),
		wrong("perf_event_open", unix.SYS_PERF_EVENT_OPEN, badPointer, 0, 0, 0, 0),
		wrong("name_to_handle_at", unix.SYS_NAME_TO_HANDLE_AT, 0, pointer(&root[0]), badPointer, badPointer, 0),
		wrong("open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, 0, badPointer, 0),
		refused("vmsplice", func(string) error {
			var ends [2]int
			if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
				return err
			}
			defer unix.Close(ends[0])
			defer unix.Close(ends[1])
			page := []byte("x")
			iov := unix.Iovec{Base: &page[0], Len: 1}
			return call(unix.SYS_VMSPLICE, uintptr(ends[1]), pointer(&iov), 1, 0)
		}),
		wrong("chroot", unix.SYS_CHROOT, pointer(&root[0])),
		wrong("mount", unix.SYS_MOUNT, badPointer, badPointer, badPointer, 0, 0),
		wrong("umount2", unix.SYS_UMOUNT2, badPointer, 0),
		wrong("pivot_root", unix.SYS_PIVOT_ROOT, badPointer, badPointer),
		wrong("fsopen", unix.SYS_FSOPEN, badPointer, 0),
		wrong("open_tree", unix.SYS_OPEN_TREE, ^uintptr(0), badPointer, 0),
		wrong("move_mount", unix.SYS_MOVE_MOUNT, ^uintptr(0), badPointer, ^uintptr(0), badPointer, 0),
		wrong("mount_setattr", unix.SYS_MOUNT_SETATTR, ^uintptr(0), badPointer, 0, badPointer, 0),
		wrong("init_module", unix.SYS_INIT_MODULE, badPointer, 0, badPointer),
		wrong("finit_module", unix.SYS_FINIT_MODULE, ^uintptr(0), badPointer, 0),
		wrong("kexec_load", unix.SYS_KEXEC_LOAD, 0, 1<<20, badPointer, 0),
		wrong("reboot", unix.SYS_REBOOT, 0, 0, 0, 0),
		wrong("swapon", unix.SYS_SWAPON, badPointer, 0),
		wrong("acct", unix.SYS_ACCT, badPointer),
		wrong("syslog", unix.SYS_SYSLOG, 10, 0, 0),
		wrong("settimeofday", unix.SYS_SETTIMEOFDAY, badPointer, 0),
		wrong("clock_settime", unix.SYS_CLOCK_SETTIME, unix.CLOCK_REALTIME, badPointer),
		wrong("sethostname", unix.SYS_SETHOSTNAME, badPointer, 1),
		wrong("quotactl", unix.SYS_QUOTACTL, 0, badPointer, 0, 0),
		wrong("fanotify_init", unix.SYS_FANOTIFY_INIT, ^uintptr(0), 0),
		wrong("mbind", unix.SYS_MBIND, 1, 0, 0, 0, 0, 0),
		wrong("process_madvise", unix.SYS_PROCESS_MADVISE, ^uintptr(0), badPointer, 1, 0, 0),
		absent("memfd_secret", func(string) error { return call(unix.SYS_MEMFD_SECRET, ^uintptr(0)) }),
		absent("cachestat", func(string) error { return call(unix.SYS_CACHESTAT, ^uintptr(0), 0, 0, 0) }),
	}
}
