package gateway

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// memoryGoal is the size of the heap, in bytes, from which on the Go runtime works hard to stay
	// below it.
	memoryGoal = 256 << 20
	// memoryBound is how much private memory the process can get, in bytes. The process ends there.
	memoryBound = 2 << 30
)

// readable are the files that the resolver reads.
func readable() []string {
	return []string{"/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/services"}
}

// restrictFiles restricts the calling thread: it can read the files of the resolver and execute this
// program, and has no other right to a file (landlock(7), Linux 5.13). A kernel without Landlock
// restricts nothing.
func restrictFiles() error {
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
	for _, path := range readable() {
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

// fileTime is the time between two looks for replaced files.
const fileTime = time.Second

// awaitNewFiles returns when a file of the resolver was made or replaced. Landlock knows files, not
// names, so this process cannot read the new file, and the next worker can.
func awaitNewFiles() {
	var watched []string
	for _, path := range readable() {
		if !isForbidden(path) { // a file that only root may read
			watched = append(watched, path)
		}
	}
	for !slices.ContainsFunc(watched, isForbidden) {
		time.Sleep(fileTime)
	}
}

func isForbidden(path string) bool {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	return err == unix.EACCES
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

// limitResources bounds the memory of the next program, raises the bound of descriptors as far as
// possible, and turns core dumps off.
func limitResources() error {
	present, err := privateMemory()
	if err != nil {
		return err
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return os.NewSyscallError("getrlimit", err)
	}
	for _, l := range []struct {
		resource int
		most     uint64
	}{
		{unix.RLIMIT_CORE, 0},
		{unix.RLIMIT_DATA, present + memoryBound}, // the next program begins with about as much as this one
		{unix.RLIMIT_NOFILE, files.Max},
	} {
		if err := unix.Setrlimit(l.resource, &unix.Rlimit{Cur: l.most, Max: l.most}); err != nil {
			return os.NewSyscallError("setrlimit", err)
		}
	}
	return nil
}

// confine takes the remaining rights from the process for ever.
func confine() error {
	debug.SetMemoryLimit(memoryGoal)
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	return filterCalls()
}

// privateMemory is the size of the private memory of the process, in bytes.
func privateMemory() (uint64, error) {
	text, err := os.ReadFile("/proc/self/statm") // proc_pid_statm(5)
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text))
	if len(fields) < 6 {
		return 0, fmt.Errorf("/proc/self/statm: %q", text)
	}
	pages, err := strconv.ParseUint(fields[5], 10, 64)
	return pages * uint64(os.Getpagesize()), err
}

// endWithParent has the kernel kill this process when its parent ends. The calling thread must live as
// long as the process.
func endWithParent(parent int) error {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	if unix.Getppid() != parent {
		return errors.New("the parent has ended")
	}
	return nil
}
