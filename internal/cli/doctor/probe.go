package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/kernel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/jobs"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// ProbeCommand is the command of this program that doctor runs inside a sandbox.
const ProbeCommand = "doctor-probe"

// Probe looks from inside a sandbox and writes the finding in JSON: "look" at the walls, for the
// "keyring", or "spin" to use a processor. "nothing" only has to be there.
func Probe(part string, out io.Writer) error {
	var finding any
	var err error
	switch part {
	case "look":
		finding, err = look()
	case "keyring":
		finding, err = sessionKeyring()
	case "spin":
		finding, err = spin(time.Second)
	case "nothing":
		return nil
	default:
		return fmt.Errorf("%s: unknown part %q", ProbeCommand, part)
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(finding)
}

// insideView is a process's view of itself and its surroundings.
type insideView struct {
	UID, GID      int
	Groups        []int
	UIDMap        string
	Status        map[string]string // of /proc/self/status
	Namespaces    map[string]string
	Mounts        []mountView
	Masked        []string          // of the paths that should be: those that show something
	Changeable    []string          // of the paths that should be read-only: those that are not
	Devices       map[string]string // number by name
	DeviceMade    bool
	OwnDevices    bool     // the nodes are of the sandbox's own /dev
	NewNamespaces []string // those that could be made
	Allowed       []string // of the system calls that should be refused
	Refused       int
	Rlimits       map[string]uint64 // hard ones
	FileError     string            // of a byte behind the file size limit; "" if it was written
	Inherited     []string          // descriptors beyond the standard three
	Sockets       []string
	Links         []string
	Processes     int
}

type mountView struct {
	Target, Type, Options string
	// Device is the number of the device node that was mounted, or "".
	Device string
}

func look() (v insideView, err error) {
	v.Inherited = inheritedDescriptors() // first: the others open some
	v.UID, v.GID = os.Getuid(), os.Getgid()
	if v.Groups, err = os.Getgroups(); err != nil {
		return v, err
	}
	v.Groups = slices.DeleteFunc(v.Groups, func(gid int) bool { return gid == v.GID })
	uidMap, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return v, err
	}
	v.UIDMap = strings.Join(strings.Fields(string(uidMap)), " ")
	v.Status = kernel.ProcessStatus()
	if v.Namespaces, err = ownNamespaces(); err != nil {
		return v, err
	}
	if v.Mounts, err = ownMounts(); err != nil {
		return v, err
	}
	v.Masked = append(slices.DeleteFunc(hostsSecrets(), isHidden), foreignGroups(cgroupDirectory)...)
	hierarchies, _ := filepath.Glob(cgroupDirectory + "/*") // it fails for a wrong pattern only
	v.Changeable = slices.DeleteFunc(append(hostsControls(), hierarchies...), isProtected)
	if v.Devices, err = devices(); err != nil {
		return v, err
	}
	v.DeviceMade = makesDevice()
	v.OwnDevices = fileSystem("/dev/null") == fileSystem("/dev")
	v.NewNamespaces = madeNamespaces()
	v.Allowed, v.Refused = tryCalls()
	v.Rlimits = jobs.InheritedLimits()
	v.FileError = writeBehind(v.Rlimits["RLIMIT_FSIZE"])
	v.Sockets = socketsInSight()
	v.Links = networkLinks()
	v.Processes, err = processesInSight()
	return v, err
}

// inheritedDescriptors are those that survived the execution of this program. The
// program's own descriptors are close-on-exec.
func inheritedDescriptors() []string {
	var found []string
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return []string{err.Error()}
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= 2 {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && flags&unix.FD_CLOEXEC == 0 {
			to, _ := os.Readlink("/proc/self/fd/" + e.Name())
			found = append(found, e.Name()+" "+to)
		}
	}
	return found
}

// namespaceKinds are those that each sandbox has of its own.
func namespaceKinds() []string { return []string{"cgroup", "ipc", "mnt", "net", "pid", "user", "uts"} }

func ownNamespaces() (map[string]string, error) {
	all := map[string]string{}
	for _, kind := range namespaceKinds() {
		link, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			return nil, err
		}
		all[kind] = link
	}
	return all, nil
}

func ownMounts() ([]mountView, error) {
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	var all []mountView
	for _, m := range mounts {
		all = append(all, mountView{m.Mountpoint, m.FSType, m.Options, deviceNumber(m.Mountpoint)})
	}
	return all, nil
}

// hostsSecrets are the parts of /proc and /sys that tell about the host. The list
// is not the specification's, whose gaps it would have.
func hostsSecrets() []string {
	return []string{
		"/proc/acpi", "/proc/asound", "/proc/cmdline", "/proc/diskstats", "/proc/fs", "/proc/interrupts", "/proc/kcore", "/proc/key-users", "/proc/keys",
		"/proc/latency_stats", "/proc/locks", "/proc/modules", "/proc/partitions", "/proc/pressure", "/proc/sched_debug", "/proc/scsi", "/proc/swaps", "/proc/timer_list", "/proc/timer_stats",
		"/proc/zoneinfo", "/proc/kpagecount", "/proc/kpageflags", "/proc/kmsg", "/proc/vmallocinfo", "/proc/slabinfo",
		"/sys/firmware", "/sys/kernel", "/sys/devices",
	}
}

// hostsControls are the files that control the kernel.
func hostsControls() []string {
	return []string{
		"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger", "/proc/sys/kernel", "/proc/sys/fs",
		"/proc/sys/net", "/proc/sys/vm", "/sys", cgroupDirectory,
	}
}

// cgroupDirectory is where a sandbox sees its own cgroup.
const cgroupDirectory = "/sys/fs/cgroup"

// foreignGroups are the cgroups below a directory that are not the sandbox's own. The own
// ones are the group that is mounted, and in it the agent's and those of commands.
func foreignGroups(top string) (found []string) {
	_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil //nolint:nilerr // a file that cannot be read is not in sight
		}
		name, parent := d.Name(), filepath.Dir(path)
		isRoot := statedir.Exists(path+"/release_agent") || statedir.Exists(path+"/cgroup.procs") && path == top && !statedir.Exists(path+"/cgroup.type")
		isOther := path != top && statedir.Exists(parent+"/cgroup.procs") && name != "agent" && !strings.HasPrefix(name, "exec-")
		if isRoot || isOther {
			found = append(found, path)
			return fs.SkipDir
		}
		return nil
	})
	return found
}

// isHidden says that nothing can be seen of a path: no byte of a file, and no entry of a directory.
func isHidden(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return true // the sandbox hides the path, or this kernel has no such path
	}
	defer f.Close()
	n, _ := f.Read(make([]byte, 1)) // fails for a directory
	names, _ := f.Readdirnames(1)   // fails for a file
	return n == 0 && len(names) == 0
}

// isProtected says that a mount protects a path, without regard to its mode, or that the path is missing.
func isProtected(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) != nil || st.Flags&unix.ST_RDONLY != 0
}

// devices maps the names in /dev to their numbers.
func devices() (map[string]string, error) {
	entries, err := os.ReadDir("/dev")
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, e := range entries {
		if e.Type() == fs.ModeSymlink {
			continue
		}
		if number := deviceNumber("/dev/" + e.Name()); number != "" {
			found[e.Name()] = number
		}
	}
	return found, nil
}

// deviceNumber is as in "c 1:3", and empty for a file that is no device.
func deviceNumber(path string) string {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return ""
	}
	kind, ok := map[uint32]string{unix.S_IFCHR: "c", unix.S_IFBLK: "b"}[st.Mode&unix.S_IFMT]
	if !ok {
		return ""
	}
	return fmt.Sprintf("%s %d:%d", kind, unix.Major(st.Rdev), unix.Minor(st.Rdev))
}

// fileSystem is the number of a path's, 0 for one that is not there.
func fileSystem(path string) uint64 {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0
	}
	return st.Dev
}

// makesDevice says whether a node of /dev/null can be made and opened.
func makesDevice() bool {
	path := filepath.Join(os.TempDir(), fmt.Sprintf("doctor-device-%d", os.Getpid()))
	err := unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3)))
	if err != nil {
		return false
	}
	defer os.Remove(path)
	return true
}

// madeNamespaces are the kinds in which a new process could be started.
func madeNamespaces() []string {
	var made []string
	for name, flags := range map[string]uintptr{
		"user": unix.CLONE_NEWUSER, "net": unix.CLONE_NEWNET, "user and net": unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
		"mnt": unix.CLONE_NEWNS, "user and mnt": unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
	} {
		cmd := exec.Command("/proc/self/exe", ProbeCommand, "nothing")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
		if cmd.Start() == nil {
			_ = cmd.Wait() // it was there
			made = append(made, name)
		}
	}
	slices.Sort(made)
	return made
}

// writeBehind writes one byte behind the end that a file may have.
func writeBehind(limit uint64) string {
	signal.Ignore(unix.SIGXFSZ) // for the error in its place
	f, err := os.CreateTemp("", "doctor")
	if err != nil {
		return err.Error()
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if _, err := f.WriteAt([]byte{0}, int64(min(limit, 1<<32))); err != nil { // sparse
		return err.Error()
	}
	return ""
}

// socketsInSight are sockets that lie in directories where daemons keep them,
// and all that have a name in the network namespace.
func socketsInSight() []string {
	var found []string
	names, _ := os.ReadFile("/proc/net/unix")
	for line := range strings.Lines(string(names)) {
		if f := strings.Fields(line); len(f) == 8 && f[7] != "Path" { // the heading
			found = append(found, f[7])
		}
	}
	const enough = 10_000
	looked := 0
	for _, root := range []string{"/run", "/tmp", "/dev", "/home", spec.WorkspacePath} {
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if looked++; looked > enough {
				return fs.SkipAll
			}
			if err == nil && d.Type() == fs.ModeSocket {
				found = append(found, path)
			}
			return nil // a directory that cannot be read is not in sight
		})
	}
	return found
}

func networkLinks() []string {
	links, err := net.Interfaces()
	if err != nil {
		return []string{err.Error()}
	}
	var names []string
	for _, l := range links {
		names = append(names, l.Name)
	}
	return names
}

func processesInSight() (int, error) {
	entries, err := os.ReadDir("/proc")
	n := 0
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil {
			n++
		}
	}
	return n, err
}

// spin uses a processor for that time, and returns the part of one that it had.
func spin(d time.Duration) (float64, error) {
	before, err := ownCPU()
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	for time.Since(begin) < d {
	}
	after, err := ownCPU()
	return (after - before).Seconds() / time.Since(begin).Seconds(), err
}

func ownCPU() (time.Duration, error) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("getrusage: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

// sessionKeyring asks for the number of the session keyring, without making one.
func sessionKeyring() (int, error) {
	id, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false)
	if err != nil {
		return 0, fmt.Errorf("keyctl: %w", err)
	}
	return id, nil
}
