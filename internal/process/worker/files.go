package worker

import (
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// RestrictFiles restricts the calling thread: it can read the files of these paths and execute this
// program, and has no other right to open a file (landlock(7), Linux 5.13). A kernel without Landlock
// restricts nothing. [TakeOverConfined] extends the restriction to all threads.
func RestrictFiles(readable ...string) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil { // landlock_restrict_self(2) needs it
		return os.NewSyscallError("prctl", err)
	}
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno == unix.ENOSYS || errno == unix.EOPNOTSUPP {
		return nil
	}
	if errno != 0 {
		return os.NewSyscallError("landlock_create_ruleset", errno)
	}
	attributes := unix.LandlockRulesetAttr{Handled_access_fs: fileRights(int(version))}
	size := unsafe.Sizeof(attributes.Handled_access_fs)
	if version >= 6 { // scopes; the size has the rights to the network, too, which stay
		size = unsafe.Offsetof(attributes.Scoped) + unsafe.Sizeof(attributes.Scoped)
		attributes.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
	}
	rules, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attributes)), size, 0)
	if errno != 0 {
		return os.NewSyscallError("landlock_create_ruleset", errno)
	}
	defer unix.Close(int(rules))
	for _, path := range readable {
		if err := permit(int(rules), path, unix.LANDLOCK_ACCESS_FS_READ_FILE); err != nil {
			return err
		}
	}
	program, err := programFiles()
	if err != nil {
		return err
	}
	for _, path := range program {
		if err := permit(int(rules), path, unix.LANDLOCK_ACCESS_FS_READ_FILE|unix.LANDLOCK_ACCESS_FS_EXECUTE); err != nil {
			return err
		}
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, rules, 0, 0); errno != 0 {
		return os.NewSyscallError("landlock_restrict_self", errno)
	}
	return nil
}

// fileRights are all rights to files that a version of Landlock knows.
func fileRights(version int) uint64 {
	const first = unix.LANDLOCK_ACCESS_FS_MAKE_SYM<<1 - 1
	rights := uint64(first)
	for _, later := range []struct {
		version int
		right   uint64
	}{
		{2, unix.LANDLOCK_ACCESS_FS_REFER},
		{3, unix.LANDLOCK_ACCESS_FS_TRUNCATE},
		{5, unix.LANDLOCK_ACCESS_FS_IOCTL_DEV},
	} {
		if version >= later.version {
			rights |= later.right
		}
	}
	return rights
}

// permit gives a right to one file, or to none if the file is missing.
func permit(rules int, path string, right uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil // the file cannot be read anyway
	}
	defer unix.Close(fd)
	below := unix.LandlockPathBeneathAttr{Allowed_access: right, Parent_fd: int32(fd)}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(rules), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&below)), 0, 0, 0)
	if errno != 0 && errno != unix.EBADFD { // EBADFD: a memfd, to which Landlock does not apply
		return fmt.Errorf("landlock_add_rule %s: %w", path, errno)
	}
	return nil
}

// programFiles are the files of this program: its executable, and the libraries of a dynamic one.
func programFiles() ([]string, error) {
	text, err := os.ReadFile("/proc/self/maps") // proc_pid_maps(5)
	if err != nil {
		return nil, err
	}
	files := []string{"/proc/self/exe"}
	for line := range strings.Lines(string(text)) {
		if at := strings.IndexByte(line, '/'); at >= 0 {
			if path := strings.TrimSpace(line[at:]); path != files[len(files)-1] {
				files = append(files, path)
			}
		}
	}
	return files, nil
}
