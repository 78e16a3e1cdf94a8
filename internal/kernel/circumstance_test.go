package kernel

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// circumstances are changes that a process makes to itself and its own
// namespaces before it checks features.
var circumstances = map[string]func() error{
	"unchanged":              func() error { return nil },
	"no user namespaces":     writeSysctl("user.max_user_namespaces", "0"),
	"no network namespaces":  writeSysctl("user.max_net_namespaces", "0"),
	"no executable memfd":    writeSysctl("vm.memfd_noexec", "2"),
	"covered proc":           coverProc,
	"filter kills open_tree": func() error { return filter(unix.SYS_OPEN_TREE, unix.SECCOMP_RET_KILL_PROCESS) },
	"filter refuses clone":   func() error { return filter(unix.SYS_UNSHARE, unix.SECCOMP_RET_ERRNO|uint32(unix.EPERM)) },
	"filter hides openat2":   func() error { return filter(unix.SYS_OPENAT2, unix.SECCOMP_RET_ERRNO|uint32(unix.ENOSYS)) },
}

func writeSysctl(name, value string) func() error {
	return func() error {
		return os.WriteFile("/proc/sys/"+strings.ReplaceAll(name, ".", "/"), []byte(value), 0)
	}
}

// coverProc hides a file of /proc as container managers do.
func coverProc() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	return unix.Mount("/dev/null", "/proc/version", "", unix.MS_BIND, "")
}

// filter puts a seccomp filter on all threads that answers one system call
// with an action.
func filter(call uint32, action uint32) error {
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the system call's number
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: action},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	load := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&load)))
	if errno != 0 {
		return errno
	}
	return nil
}

// ownUserNamespace makes the process root of one, whose sysctls are its own.
func ownUserNamespace() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
}

// wantNotSupported checks that a feature was found missing and that the error
// has all of the parts.
func wantNotSupported(t *testing.T, v verdict, parts ...string) {
	t.Helper()
	if !v.NotSupported {
		t.Errorf("%s: got %q, want that it is not supported", v.Feature, v.Text)
	}
	for _, part := range parts {
		if !strings.Contains(v.Text, part) {
			t.Errorf("%s: %q does not say %q", v.Feature, v.Text, part)
		}
	}
}

func wantSupported(t *testing.T, verdicts map[Feature]verdict, features ...Feature) {
	t.Helper()
	for _, f := range features {
		if v, ok := verdicts[f]; !ok || v.Text != "" {
			t.Errorf("%s: got %q, want that it is there", f, v.Text)
		}
	}
}

func TestNoUserNamespacesWhereTheirLimitIsZero(t *testing.T) {
	needRoot(t)
	got := checkIn(t, "no user namespaces", ownUserNamespace(), UserNamespaces, NetworkNamespaces, MountAPI, Openat2)
	wantNotSupported(t, got[UserNamespaces], "no space left on device", "sysctl -w user.max_user_namespaces=15000")
	wantSupported(t, got, Openat2)
}

func TestNoNetworkNamespacesWhereTheirLimitIsZero(t *testing.T) {
	needRoot(t)
	got := checkIn(t, "no network namespaces", ownUserNamespace(), UserNamespaces, MountNamespaces, NetworkNamespaces)
	wantNotSupported(t, got[NetworkNamespaces], "no space left on device", "sysctl -w user.max_net_namespaces=15000")
	wantSupported(t, got, UserNamespaces, MountNamespaces)
}

// What cannot be tried is neither there nor missing.
func TestOrdinaryUserWithoutUserNamespaces(t *testing.T) {
	needRoot(t)
	attr := ownUserNamespace()
	attr.UidMappings[0].ContainerID = 1000
	attr.GidMappings[0].ContainerID = 1000
	attr.AmbientCaps = []uintptr{unix.CAP_SYS_RESOURCE} // to write the limit, and no more
	attr.Credential = &syscall.Credential{Uid: 1000, Gid: 1000, NoSetGroups: true}
	got := checkIn(t, "no user namespaces", attr, UserNamespaces, MountAPI, Procfs, Overlay, Openat2)
	wantNotSupported(t, got[UserNamespaces], "sysctl -w user.max_user_namespaces=15000")
	wantSupported(t, got, Openat2)
	for _, f := range []Feature{MountAPI, Procfs, Overlay} {
		if v := got[f]; v.NotSupported || !strings.Contains(v.Text, "not tried: no user namespace") {
			t.Errorf("%s: got %q, want that it was not tried", f, v.Text)
		}
	}
}

func TestExecutableMemfdIsRefusedBySysctl(t *testing.T) {
	needRoot(t)
	if sysctl("vm.memfd_noexec") == "" {
		t.Skip("this kernel has no vm.memfd_noexec (Linux 6.3)")
	}
	// The setting is the pid namespace's own.
	got := checkIn(t, "no executable memfd", &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}, MemfdExec)
	wantNotSupported(t, got[MemfdExec], "permission denied", "sysctl -w vm.memfd_noexec=1")
}

func TestCoveredProcIsNamed(t *testing.T) {
	needRoot(t)
	got := checkIn(t, "covered proc", &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}, Procfs, MountAPI)
	wantNotSupported(t, got[Procfs], "mount proc: operation not permitted", "systempaths=unconfined")
	wantSupported(t, got, MountAPI)
}

func TestFilterThatKillsIsSurvived(t *testing.T) {
	needRoot(t)
	got := checkIn(t, "filter kills open_tree", nil, MountAttributes, MountAPI)
	wantNotSupported(t, got[MountAttributes], "open_tree: a seccomp filter kills the caller", "seccomp=unconfined")
	wantSupported(t, got, MountAPI)
}

func TestFilterOfAContainerIsNamed(t *testing.T) {
	needRoot(t)
	got := checkIn(t, "filter refuses clone", nil, UserNamespaces, PIDNamespaces)
	wantNotSupported(t, got[UserNamespaces], "operation not permitted", "seccomp=unconfined")
	wantNotSupported(t, got[PIDNamespaces], "operation not permitted", "seccomp=unconfined")
	got = checkIn(t, "filter hides openat2", nil, Openat2)
	wantNotSupported(t, got[Openat2], "function not implemented", "seccomp=unconfined")
}

func TestOrdinaryUserIsToldWhatItTakes(t *testing.T) {
	needRoot(t)
	got := checkIn(t, "unchanged", nobody(), allFeatures()...)
	wantNotSupported(t, got[Privilege], "uid 65534 lacks", "CAP_SYS_ADMIN", "run it as root")
	wantNotSupported(t, got[IDRange], "/etc/subuid", "usermod --add-subuids")
	wantNotSupported(t, got[IDMappedMounts], "operation not permitted", "run it as root")
	wantSupported(t, got, UserNamespaces, MountNamespaces, PIDNamespaces, NetworkNamespaces, IPCNamespaces, UTSNamespaces,
		CgroupNamespaces, MountAPI, MountAttributes, Procfs, Openat2, MemfdExec, Pidfd, CloseRange, SeccompFilter)
	for f, v := range got {
		if strings.Contains(v.Text, "not tried") {
			t.Errorf("%s: %s", f, v.Text)
		}
	}
}

// A mount below the directory that the check copies changes no reason.
func TestMountsBelowADirectoryChangeNoReason(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	below := filepath.Join(dir, "below")
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Mkdir(below, 0o755)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", dir)
	runtime.LockOSThread() // the thread ends with the test, and so does the mount namespace
	if err := errors.Join(unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("below", below, "tmpfs", 0, "")); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(below, unix.MNT_DETACH)
	got := checkIn(t, "unchanged", nobody(), IDMappedMounts)
	wantNotSupported(t, got[IDMappedMounts], "operation not permitted", "run it as root")
}

func TestCheckRequiredNamesEverythingOnOneLine(t *testing.T) {
	needRoot(t)
	got := checkIn(t, "no network namespaces", ownUserNamespace(), required)[required]
	wantNotSupported(t, got, "65,536 ids", "network namespaces", "sysctl -w user.max_net_namespaces=15000")
	if strings.Contains(got.Text, "\n") {
		t.Errorf("more than one line: %q", got.Text)
	}
	got = checkIn(t, "unchanged", nobody(), required)[required]
	wantNotSupported(t, got, "root's capabilities", "run it as root")
	if strings.Contains(got.Text, "65,536") {
		t.Errorf("names what follows from the lack of privilege: %q", got.Text)
	}
}
