package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

func tryPidfd(s *script) {
	fd := s.call("pidfd_open", unix.SYS_PIDFD_OPEN, num(os.Getpid()), num(0))
	s.call("pidfd_send_signal", unix.SYS_PIDFD_SEND_SIGNAL, fd, num(0), num(0), num(0))
}

// tryCloneIntoCgroup hands clone3(2) a descriptor that is none: a kernel that
// knows the flag says so, one that does not minds the size of the structure.
func tryCloneIntoCgroup(s *script) {
	const noDescriptor = 1<<31 - 1
	// struct clone_args: flags, 9 more, cgroup.
	args := []uint64{unix.CLONE_INTO_CGROUP, 0, 0, 0, 0, 0, 0, 0, 0, 0, noDescriptor}
	s.call("clone3", unix.SYS_CLONE3, s.words(args...), num(8*len(args)))
	s.want(unix.EBADF)
}

// probeCgroupDevices asks which rules hold at the root of cgroup v2, as
// libcontainer does of each group before it attaches its own. On v1 they are
// files, which take no more than the right to write them.
func probeCgroupDevices(*prober) (string, error) {
	root, err := os.Open("/sys/fs/cgroup")
	if err != nil {
		return "", err
	}
	defer root.Close()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(root.Fd()), &st); err != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
		return "", err
	}
	return "", runHere(func(s *script) {
		// union bpf_attr, query: target_fd, attach_type; no room for an answer.
		query := []uint64{uint64(root.Fd()) | unix.BPF_CGROUP_DEVICE<<32, 0, 0, 0}
		s.call("bpf(BPF_PROG_QUERY)", unix.SYS_BPF, num(unix.BPF_PROG_QUERY), s.words(query...), num(8*len(query)))
	})
}

func tryCloseRange(s *script) {
	s.call("close_range", unix.SYS_CLOSE_RANGE, num(3), num(1<<31-1), num(unix.CLOSE_RANGE_CLOEXEC))
}

// probeMemfdExec makes a memfd of two bytes that are no program, and executes
// it: that they are none is found after all that could forbid it.
func probeMemfdExec(*prober) (string, error) {
	// Linux 6.3 wants the flag, those before do not know it.
	err := execMemfd(unix.MFD_EXEC)
	if failed, ok := errors.AsType[*callError](err); ok && failed.call == memfdCreate && errors.Is(err, unix.EINVAL) {
		err = execMemfd(0)
	}
	return "", err
}

const memfdCreate = "memfd_create"

func execMemfd(flags int) error {
	return runHere(func(s *script) {
		fd := s.call(memfdCreate, unix.SYS_MEMFD_CREATE, s.text("probe"), num(unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|flags))
		s.call("write", unix.SYS_WRITE, fd, s.text("x"), num(2))
		s.call("seal a memfd", unix.SYS_FCNTL, fd, num(unix.F_ADD_SEALS),
			num(unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE))
		s.call("execute a memfd", unix.SYS_EXECVEAT, fd, s.text(""), s.words(0), s.words(0), num(unix.AT_EMPTY_PATH))
		s.want(unix.ENOEXEC)
	})
}

// allowAll is a seccomp filter that changes nothing: struct sock_fprog with
// one struct sock_filter, BPF_RET|BPF_K.
func allowAll(s *script) arg {
	instruction := binary.NativeEndian.AppendUint16(nil, unix.BPF_RET|unix.BPF_K)
	instruction = append(instruction, 0, 0)
	instruction = binary.NativeEndian.AppendUint32(instruction, unix.SECCOMP_RET_ALLOW)
	program, address := s.buffer(int(unsafe.Sizeof(unix.SockFprog{})))
	fprog := (*unix.SockFprog)(unsafe.Pointer(&program[0]))
	fprog.Len = 1
	// A pointer for the child; nothing here follows it.
	*(*uintptr)(unsafe.Pointer(&fprog.Filter)) = s.bytes(instruction).value
	return address
}

func loadFilter(s *script, flags uint) {
	s.call("prctl no_new_privs", unix.SYS_PRCTL, num(unix.PR_SET_NO_NEW_PRIVS), num(1), num(0), num(0), num(0))
	s.call("seccomp", unix.SYS_SECCOMP, num(unix.SECCOMP_SET_MODE_FILTER), num(flags), allowAll(s))
}

func trySeccompFilter(s *script) {
	loadFilter(s, 0)
}

func trySeccompNotify(s *script) {
	seccompAction(s, unix.SECCOMP_RET_USER_NOTIF)
	loadFilter(s, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER)
}

// seccompActions in the order of their precedence, seccomp(2).
var seccompActions = []struct {
	name  string
	value uint32
}{
	{"kill_process", unix.SECCOMP_RET_KILL_PROCESS},
	{"kill_thread", unix.SECCOMP_RET_KILL_THREAD},
	{"trap", unix.SECCOMP_RET_TRAP},
	{"errno", unix.SECCOMP_RET_ERRNO},
	{"user_notif", unix.SECCOMP_RET_USER_NOTIF},
	{"trace", unix.SECCOMP_RET_TRACE},
	{"log", unix.SECCOMP_RET_LOG},
	{"allow", unix.SECCOMP_RET_ALLOW},
}

func seccompAction(s *script, action uint32) {
	b, address := s.buffer(4)
	*(*uint32)(unsafe.Pointer(&b[0])) = action
	s.call("seccomp: ask for an action", unix.SYS_SECCOMP, num(unix.SECCOMP_GET_ACTION_AVAIL), num(0), address)
}

// probeSeccompActions lists the actions; the feature is the two that profiles
// use and early kernels did not have.
func probeSeccompActions(*prober) (string, error) {
	var have []string
	var missing error
	for _, action := range seccompActions {
		err := runHere(func(s *script) { seccompAction(s, action.value) })
		switch {
		case err == nil:
			have = append(have, action.name)
		case action.value == unix.SECCOMP_RET_KILL_PROCESS, action.value == unix.SECCOMP_RET_LOG:
			missing = err
		}
	}
	return strings.Join(have, " "), missing
}

// probeLandlock asks for a version of Landlock's interface, landlock(7).
func probeLandlock(least int) probe {
	return func(*prober) (string, error) {
		s := newScript()
		defer s.free()
		abi := s.call("landlock_create_ruleset", unix.SYS_LANDLOCK_CREATE_RULESET,
			num(0), num(0), num(unix.LANDLOCK_CREATE_RULESET_VERSION))
		if err := s.run(0, nil); err != nil {
			return "", err
		}
		version := s.result(abi)
		detail := fmt.Sprintf("version %d of its interface", version)
		if version < least {
			return detail, &absentError{what: fmt.Sprintf("version %d of its interface, %d is needed", version, least)}
		}
		return detail, nil
	}
}

func tryPtrace(s *script) {
	s.call("ptrace", unix.SYS_PTRACE, num(unix.PTRACE_TRACEME), num(0), num(0), num(0))
}
