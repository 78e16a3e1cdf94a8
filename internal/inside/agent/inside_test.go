package agent

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The test binary plays three parts: the tests; process 1 of a sandbox until it
// executes the agent, as the runtime's init does; and a program inside.
const roleVariable = "AGENT_TEST_ROLE"

func TestMain(m *testing.M) {
	switch role := os.Getenv(roleVariable); role {
	case "":
		os.Exit(m.Run())
	case "init":
		runtime.LockOSThread()
		err := becomeAgent()
		fmt.Fprintln(os.NewFile(errorsDescriptor, "errors"), err)
		os.Exit(1)
	default:
		probe(role)
	}
}

// errorsDescriptor is what the init part says its errors on. Below are those of
// the agent.
const errorsDescriptor = 9

// Settings of the init part, by environment.
const (
	idVariable    = "AGENT_TEST_ID"    // the agent's id, 65535 if empty
	capsVariable  = "AGENT_TEST_CAPS"  // "none" for no capability
	filesVariable = "AGENT_TEST_FILES" // RLIMIT_NOFILE
	childVariable = "AGENT_TEST_CHILD" // set: the agent is a child of process 1
	openVariable  = "AGENT_TEST_OPEN"  // set: no filter is loaded
	procVariable  = "AGENT_TEST_PROC"  // set: /proc is a forgery

	filtersVariable = "AGENT_TEST_FILTERS" // set: commands may load filters
	sharedVariable  = "AGENT_TEST_SHARED"  // set: the agent shares its pid namespace

	groupIDsVariable = "AGENT_TEST_GROUP_IDS" // set: commands may set the set-group-ID bit
)

// becomeAgent does what the runtime does before it executes the agent: a root,
// the agent's id, its capabilities, a seccomp filter.
func becomeAgent() error {
	if err := enterRoot("/tmp"); err != nil {
		return err
	}
	if s := os.Getenv(filesVariable); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return err
		}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: n}); err != nil {
			return fmt.Errorf("setrlimit: %w", err)
		}
	}
	if os.Getenv(procVariable) != "" {
		if err := forgeProc(); err != nil {
			return err
		}
	}
	id := agentID
	if s := os.Getenv(idVariable); s != "" {
		id, _ = strconv.Atoi(s)
	}
	caps := []uintptr{unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_KILL, unix.CAP_SETPCAP, unix.CAP_SYS_CHROOT}
	if os.Getenv(capsVariable) == "none" {
		caps = nil
	}
	if err := becomeID(id, caps); err != nil {
		return err
	}
	if os.Getenv(openVariable) == "" {
		if err := filter(); err != nil {
			return err
		}
	}
	if err := unix.CloseRange(errorsDescriptor, 1<<31, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close_range: %w", err)
	}
	if os.Getenv(procVariable) != "" {
		return execDescriptor(3)
	}
	path, args, env := "/proc/self/fd/3", []string{"sandbox-agent"}, []string{"SECRET=of-the-agent"}
	if os.Getenv(filtersVariable) != "" {
		args = append(args, "filters")
	}
	if os.Getenv(groupIDsVariable) != "" {
		args = append(args, "group-ids")
	}
	if os.Getenv(sharedVariable) != "" {
		args = append(args, "shared")
	}
	if os.Getenv(childVariable) == "" {
		return os.NewSyscallError("execve", syscall.Exec(path, args, env))
	}
	pid, err := syscall.ForkExec(path, args, &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2, 3, 4}})
	if err != nil {
		return fmt.Errorf("fork: %w", err)
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil {
		return fmt.Errorf("wait: %w", err)
	}
	os.Exit(status.ExitStatus())
	return nil
}

// enterRoot makes a root of the host's /usr on a tmpfs at dir, and moves there.
func enterRoot(dir string) error {
	in := func(name string) string { return filepath.Join(dir, name) }
	var errs []error
	try := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
	}
	try("private", unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	try("tmpfs", unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"))
	for _, d := range []string{"usr", "proc", "dev", "dev/pts", "tmp", "private"} {
		try(d, os.Mkdir(in(d), 0o755))
	}
	try("tmp", os.Chmod(in("tmp"), 0o1777))
	try("private", os.Chmod(in("private"), 0o700))
	try("usr", unix.Mount("/usr", in("usr"), "", unix.MS_BIND|unix.MS_REC, ""))
	for _, l := range []string{"bin", "sbin", "lib", "lib64"} {
		try(l, os.Symlink("usr/"+l, in(l)))
	}
	for _, d := range []string{"dev/null", "dev/zero", "dev/tty"} {
		try(d, os.WriteFile(in(d), nil, 0o644))
		try(d, unix.Mount("/"+d, in(d), "", unix.MS_BIND, ""))
	}
	try("pts", unix.Mount("devpts", in("dev/pts"), "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"))
	try("ptmx", os.Symlink("pts/ptmx", in("dev/ptmx")))
	try("proc", unix.Mount("proc", in("proc"), "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""))
	try("probe", copyFile("/proc/self/exe", in("probe"), 0o755))
	try("not executable", os.WriteFile(in("plain"), []byte("text"), 0o644))
	try("no format", os.WriteFile(in("noformat"), []byte("text"), 0o755))
	try("no interpreter", os.WriteFile(in("nointerpreter"), []byte("#!/nowhere\n"), 0o755))
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	try("chdir", unix.Chdir(dir))
	try("pivot_root", unix.PivotRoot(".", "."))
	try("umount", unix.Unmount(".", unix.MNT_DETACH))
	try("chdir", unix.Chdir("/"))
	return errors.Join(errs...)
}

// forgeProc puts a directory over /proc in which all may write.
func forgeProc() error {
	return errors.Join(
		unix.Mount("tmpfs", "/proc", "tmpfs", 0, "mode=0755"),
		os.Mkdir("/proc/self", 0o755),
		os.WriteFile("/proc/self/oom_score_adj", nil, 0o644),
		os.Chmod("/proc/self/oom_score_adj", 0o666))
}

func execDescriptor(fd uintptr) error {
	var nothing [1]byte
	var list [1]uintptr
	_, _, errno := unix.RawSyscall6(unix.SYS_EXECVEAT, fd, uintptr(unsafe.Pointer(&nothing)),
		uintptr(unsafe.Pointer(&list)), uintptr(unsafe.Pointer(&list)), unix.AT_EMPTY_PATH, 0)
	return os.NewSyscallError("execveat", errno)
}

func copyFile(from, to string, mode os.FileMode) error {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	return errors.Join(err, w.Close())
}

// becomeID gives the calling thread an id and capabilities in all five sets.
func becomeID(id int, caps []uintptr) error {
	prctl := func(option int, arg2, arg3 uintptr) error {
		return os.NewSyscallError("prctl", unix.Prctl(option, arg2, arg3, 0, 0))
	}
	wanted := uint32(0)
	for _, c := range caps {
		wanted |= 1 << c
	}
	err := errors.Join(prctl(unix.PR_SET_KEEPCAPS, 1, 0), prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0))
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if len(caps) > 0 && (c > 31 || wanted&(1<<c) == 0) {
			err = errors.Join(err, prctl(unix.PR_CAPBSET_DROP, c, 0))
		}
	}
	for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
		if _, _, errno := syscall.RawSyscall(call, uintptr(id), uintptr(id), uintptr(id)); errno != 0 {
			err = errors.Join(err, os.NewSyscallError("set ids", errno))
		}
	}
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	d := [2]unix.CapUserData{{Effective: wanted, Permitted: wanted, Inheritable: wanted}}
	err = errors.Join(err, os.NewSyscallError("capset", unix.Capset(&h, &d[0])))
	for _, c := range caps {
		err = errors.Join(err, prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, c))
	}
	return err
}

// filter loads what filterCode returns.
func filter() error {
	code := filterCode()
	program := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	_, _, errno := syscall.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(code)
	if errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	return nil
}

// filterCode is a seccomp filter that refuses what the default profile does of
// the calls that matter here, but for clone3, which the agent has to have.
// ptrace(2) and its kin stay allowed: what the tests show has to hold under the
// profile that gives them back.
func filterCode() []unix.SockFilter {
	refused := map[uint32]syscall.Errno{
		unix.SYS_OPENAT2: unix.ENOSYS,
		unix.SYS_UNSHARE: unix.EPERM,
		unix.SYS_SETNS:   unix.EPERM,
		unix.SYS_MOUNT:   unix.EPERM,
	}
	const load, equal, ret = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	code := []unix.SockFilter{{Code: load}} // seccomp_data.nr
	for nr, errno := range refused {
		code = append(code, unix.SockFilter{Code: equal, Jf: 1, K: nr},
			unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(errno)})
	}
	return append(code, unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ALLOW})
}
