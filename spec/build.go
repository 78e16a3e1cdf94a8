package spec

import (
	"cmp"
	"fmt"
	"math"
	"strconv"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Host has the facts for [Build] that only the host knows.
type Host struct {
	// Root is the directory of the prepared root file system, with the sandbox's
	// own workspace, home and /tmp in place.
	Root string
	// Binds must be mounted on top of the private file systems. The maker of Root has
	// prepared them.
	Binds []specs.Mount
	// Proc is a directory for /proc, a procfs of the launcher's pid namespace: a sandbox
	// may not mount one itself. Empty: the sandbox has a pid namespace of its own.
	Proc string
	// Devices is a directory for /dev, with its nodes and links. Empty: the nodes
	// are the host's.
	Devices string
	// Init is the command line of PID 1.
	Init []string
	// CgroupsPath is the sandbox's own group.
	CgroupsPath string
	// Network is the path of the sandbox's network namespace; empty: a new one.
	Network string
	// Limits says which limits the host enforces; the others are left out.
	Limits LimitReport
	// SwapLimit says that the host can limit memory and swap together.
	SwapLimit bool
	// UIDMappings and GIDMappings are of the sandbox's user namespace.
	UIDMappings, GIDMappings []specs.LinuxIDMapping
	// Seccomp is the filter of PID 1 and all its descendants.
	Seccomp *specs.LinuxSeccomp
	// Disks are the block devices that the I/O limits apply to.
	Disks []Disk
}

// Disk is a block device by its numbers.
type Disk struct{ Major, Minor int64 }

// MaxTerminals is how many pseudo-terminals a sandbox can have at once. The host
// has kernel.pty.max of them, 4096, for all.
const MaxTerminals = 64

// cpuPeriod is the scheduling period of CPU limits in microseconds, the
// kernel's own default.
const cpuPeriod = 100_000

// Build turns a completed configuration into the OCI runtime specification of
// its sandbox: that of PID 1 and the walls around it. The command itself is
// started by PID 1.
//
// runtime-spec v1.3.0, config.md and config-linux.md.
func Build(c Config, h Host) *specs.Spec {
	return &specs.Spec{
		Version:  specs.Version,
		Hostname: c.Hostname,
		Root:     &specs.Root{Path: h.Root, Readonly: !c.Writable},
		Process:  initProcess(h.Init),
		Mounts:   mounts(h, c.Limits.ShmSize),
		Linux: &specs.Linux{
			Namespaces:    namespaces(c, h),
			UIDMappings:   h.UIDMappings,
			GIDMappings:   h.GIDMappings,
			CgroupsPath:   h.CgroupsPath,
			Resources:     Resources(c.Limits, h),
			Seccomp:       h.Seccomp,
			MaskedPaths:   maskedPaths(),
			ReadonlyPaths: readonlyPaths(),
		},
	}
}

func namespaces(c Config, h Host) []specs.LinuxNamespace {
	all := []specs.LinuxNamespace{
		{Type: specs.PIDNamespace},
		{Type: specs.MountNamespace},
		{Type: specs.IPCNamespace},
		{Type: specs.UTSNamespace},
		{Type: specs.NetworkNamespace, Path: h.Network},
		{Type: specs.CgroupNamespace},
		{Type: specs.UserNamespace},
	}
	if c.PID == PIDHost {
		return all[1:]
	}
	return all
}

// initProcess is PID 1: under an id of its own, with the capabilities it needs
// to become the command's user, in a root of the command's own, and to signal
// it. SETPCAP lets it empty its
// bounding set, which it does first. The ambient set carries the capabilities
// over the execve of a user other than root. PID 1 sets its own resource limits:
// without CAP_SYS_RESOURCE the host may not, in a user namespace of another owner.
func initProcess(args []string) *specs.Process {
	caps := func() []string {
		return []string{"CAP_KILL", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT"}
	}
	return &specs.Process{
		User: specs.User{UID: AgentID, GID: AgentID},
		Args: args,
		Env:  []string{},
		Cwd:  "/",
		Capabilities: &specs.LinuxCapabilities{
			Bounding: caps(), Effective: caps(), Permitted: caps(), Inheritable: caps(), Ambient: caps(),
		},
		NoNewPrivileges: true,
	}
}

func mounts(h Host, shm Size) []specs.Mount {
	all := []specs.Mount{
		// A prepared /proc has the options of a mount already. libcontainer makes no nodes and links in a prepared /dev.
		preparedOr(h.Proc, specs.Mount{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}}),
		preparedOr(h.Devices, tmpfs("/dev", 64<<10, "mode=755", "noexec")),
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts",
			Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5", "max=" + strconv.Itoa(MaxTerminals)}},
		tmpfs("/dev/shm", shm, "mode=1777", "nodev", "noexec"),
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
	}
	return append(all, h.Binds...)
}

// preparedOr shows a prepared directory in place of a mount, if there is one.
func preparedOr(dir string, mount specs.Mount) specs.Mount {
	if dir == "" {
		return mount
	}
	return specs.Mount{Destination: mount.Destination, Type: "bind", Source: dir, Options: []string{"rbind"}}
}

// tmpfs is a file system in memory of at most so many bytes, and of one inode for every 4
// KiB, which bounds the cost of empty files for the kernel.
func tmpfs(target string, size Size, options ...string) specs.Mount {
	return specs.Mount{
		Destination: target, Type: "tmpfs", Source: "tmpfs",
		Options: append([]string{
			"nosuid", fmt.Sprintf("size=%d", int64(size)), fmt.Sprintf("nr_inodes=%d", max(int64(size>>12), 256)),
		}, options...),
	}
}

// AgentPids are the tasks that PID 1 and its helpers may have beyond the
// command's limit. Each command has a cgroup of its own with just that limit, so
// that one which forks without end leaves room for another's start.
const AgentPids = 32

// Resources are the limits of the sandbox's cgroup.
func Resources(l Limits, h Host) *specs.LinuxResources {
	r := &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}}
	if h.Limits.Memory == Enforced {
		memory := int64(l.Memory)
		r.Memory = &specs.LinuxMemory{Limit: &memory}
		if h.SwapLimit {
			r.Memory.Swap = &memory
		}
	}
	if h.Limits.CPU == Enforced {
		period, quota := uint64(cpuPeriod), int64(math.Round(float64(l.CPUs)*cpuPeriod))
		r.CPU = &specs.LinuxCPU{Quota: &quota, Period: &period}
	}
	if h.Limits.Pids == Enforced {
		pids := l.Pids + AgentPids
		r.Pids = &specs.LinuxPids{Limit: &pids}
	}
	if h.Limits.IO == Enforced && l.Throttled() {
		r.BlockIO = &specs.LinuxBlockIO{
			ThrottleReadBpsDevice:  throttle(h.Disks, l.IORead),
			ThrottleWriteBpsDevice: throttle(h.Disks, l.IOWrite),
		}
	}
	return r
}

func throttle(disks []Disk, rate Size) []specs.LinuxThrottleDevice {
	if rate == 0 {
		return nil
	}
	var all []specs.LinuxThrottleDevice
	for _, d := range disks {
		device := specs.LinuxThrottleDevice{Rate: uint64(rate)}
		device.Major, device.Minor = d.Major, d.Minor
		all = append(all, device)
	}
	return all
}

// maskedPaths are the parts of /proc that tell about the host or its other
// users and that no program needs. /proc/stat stays: programs count processors in
// it.
func maskedPaths() []string {
	return []string{
		"/proc/acpi", "/proc/asound", "/proc/cmdline", "/proc/diskstats", "/proc/fs", "/proc/interrupts",
		"/proc/kcore", "/proc/key-users", "/proc/keys", "/proc/latency_stats", "/proc/locks", "/proc/modules",
		"/proc/partitions", "/proc/pressure", "/proc/sched_debug", "/proc/scsi", "/proc/swaps", "/proc/timer_list", "/proc/timer_stats",
		"/proc/zoneinfo",
	}
}

func readonlyPaths() []string {
	return []string{"/proc/bus", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
}

// The most that a command may have of resources that the kernel counts per user.
const (
	queuedSignals = 4096      // timers of timer_create(2) among them
	queueBytes    = 800 << 10 // of POSIX message queues: the kernel's default
)

// Rlimits are the resource limits of the command, none of which is above the
// inherited hard limit given for its type: without CAP_SYS_RESOURCE the kernel
// refuses that. A type that inherited does not name is not clamped.
func (c Config) Rlimits(inherited map[string]uint64) []specs.POSIXRlimit {
	// A sandbox that is up since before an upgrade has no limit of open files.
	files := cmp.Or(c.Limits.NoFile, DefaultLimits().NoFile)
	fileSize := uint64(c.Limits.FileSize)
	if c.Limits.FileSize == Unlimited {
		fileSize = math.MaxUint64 // RLIM_INFINITY
	}
	var want []specs.POSIXRlimit
	for _, limit := range []struct {
		name  string
		value uint64
	}{
		{"RLIMIT_CORE", 0},
		{"RLIMIT_FSIZE", fileSize},
		{"RLIMIT_NOFILE", uint64(files)},
		{"RLIMIT_SIGPENDING", queuedSignals},
		{"RLIMIT_MSGQUEUE", queueBytes},
	} {
		if hard, ok := inherited[limit.name]; ok {
			limit.value = min(limit.value, hard)
		}
		want = append(want, specs.POSIXRlimit{Type: limit.name, Soft: limit.value, Hard: limit.value})
	}
	return want
}
