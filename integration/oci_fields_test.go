package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// A field is one of the specification that has a program see something else,
// or is refused.
type field struct {
	name   string
	change func(*testing.T, *specs.Spec)
	script string // of the container's program; its output and status are want
	want   result
}

var fields = []field{
	{"domainname", func(_ *testing.T, s *specs.Spec) { s.Domainname = "example.org" }, "cat /proc/sys/kernel/domainname", result{stdout: "example.org\n"}},
	{"domainname without a uts namespace", func(_ *testing.T, s *specs.Spec) {
		s.Domainname = "example.org"
		s.Hostname = ""
		withoutNamespace(specs.UTSNamespace)(s)
	},
		"true", result{code: 1, stderr: "unable to set domainname without a private UTS namespace"}},
	{"hostname without a uts namespace", func(_ *testing.T, s *specs.Spec) { withoutNamespace(specs.UTSNamespace)(s) },
		"true", result{code: 1, stderr: "unable to set hostname without a private UTS namespace"}},
	{"umask", func(_ *testing.T, s *specs.Spec) { s.Process.User.Umask = new(uint32(0o27)) }, "umask", result{stdout: "0027\n"}},
	{"rlimit", func(_ *testing.T, s *specs.Spec) {
		s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 99, Hard: 100}}
	},
		"ulimit -Sn; ulimit -Hn", result{stdout: "99\n100\n"}},
	{"rlimit twice", func(_ *testing.T, s *specs.Spec) {
		s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 99, Hard: 100}, {Type: "RLIMIT_NOFILE", Soft: 80, Hard: 90}}
	},
		"ulimit -Sn; ulimit -Hn", result{stdout: "80\n90\n"}},
	{"oom score", func(_ *testing.T, s *specs.Spec) { s.Process.OOMScoreAdj = new(500) }, "cat /proc/self/oom_score_adj", result{stdout: "500\n"}},
	{"io priority", func(_ *testing.T, s *specs.Spec) {
		s.Process.IOPriority = &specs.LinuxIOPriority{Class: specs.IOPRIO_CLASS_BE, Priority: 6}
	},
		"ionice", result{stdout: "best-effort: prio 6\n"}},
	{"io priority out of range", func(_ *testing.T, s *specs.Spec) {
		s.Process.IOPriority = &specs.LinuxIOPriority{Class: specs.IOPRIO_CLASS_BE, Priority: 8}
	},
		"true", result{code: 1, stderr: "invalid ioPriority.Priority: 8"}},
	{"io priority of no class", func(_ *testing.T, s *specs.Spec) {
		s.Process.IOPriority = &specs.LinuxIOPriority{Class: "IOPRIO_CLASS_NONSENSE"}
	},
		"true", result{code: 1, stderr: "invalid ioPriority.Class"}},
	{"scheduler", func(_ *testing.T, s *specs.Spec) {
		s.Process.Scheduler = &specs.Scheduler{Policy: specs.SchedBatch, Nice: 5}
	},
		"awk '{ print $41, $19 }' /proc/self/stat", result{stdout: "3 5\n"}},
	{"unknown scheduler", func(_ *testing.T, s *specs.Spec) { s.Process.Scheduler = &specs.Scheduler{Policy: "SCHED_NONSENSE"} },
		"true", result{code: 1, stderr: "invalid policy|SCHED_NONSENSE"}},
	{"scheduler with a priority it has not", func(_ *testing.T, s *specs.Spec) {
		s.Process.Scheduler = &specs.Scheduler{Policy: specs.SchedBatch, Priority: 5}
	},
		"true", result{code: 1, stderr: "scheduler.priority can only be specified for SchedFIFO or SchedRR policy"}},
	{"personality", func(_ *testing.T, s *specs.Spec) {
		s.Linux.Personality = &specs.LinuxPersonality{Domain: specs.PerLinux32}
	},
		"uname -m", result{stdout: "i686\n"}},
	{"unknown personality", func(_ *testing.T, s *specs.Spec) { s.Linux.Personality = &specs.LinuxPersonality{Domain: "NONSENSE"} },
		"true", result{code: 1, stderr: "NONSENSE"}},
	{"time namespace", func(_ *testing.T, s *specs.Spec) {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.TimeNamespace})
		s.Linux.TimeOffsets = map[string]specs.LinuxTimeOffset{"boottime": {Secs: 1337}, "monotonic": {Secs: 7881, Nanosecs: 2718281}}
	}, "tr -s ' ' < /proc/self/timens_offsets", result{stdout: "monotonic 7881 2718281\nboottime 1337 0\n"}},
	{"time offsets without a time namespace", func(_ *testing.T, s *specs.Spec) {
		s.Linux.TimeOffsets = map[string]specs.LinuxTimeOffset{"boottime": {Secs: 1337}}
	}, "true", result{code: 1, stderr: "time namespace offsets specified, but time namespace isn't enabled"}},
	{"sysctl", func(_ *testing.T, s *specs.Spec) {
		s.Linux.Sysctl = map[string]string{"net.ipv4.ip_forward": "1", "kernel.shmmni": "17", "fs/mqueue/msg_max": "9"}
	},
		"cd /proc/sys; cat net/ipv4/ip_forward kernel/shmmni fs/mqueue/msg_max", result{stdout: "1\n17\n9\n"}},
	{"sysctl of the host", func(_ *testing.T, s *specs.Spec) { s.Linux.Sysctl = map[string]string{"vm.swappiness": "1"} },
		"true", result{code: 1, stderr: "sysctl \"?vm.swappiness\"? is not in a separate kernel namespace"}},
	{"sysctl of the host's network", func(_ *testing.T, s *specs.Spec) {
		withoutNamespace(specs.NetworkNamespace)(s)
		s.Linux.Sysctl = map[string]string{"net.ipv4.ip_forward": "1"}
	}, "true", result{code: 1, stderr: "sysctl \"?net.ipv4.ip_forward\"? not allowed in host network namespace"}},
	{"masked paths", func(_ *testing.T, s *specs.Spec) {
		s.Linux.MaskedPaths = []string{"/etc/passwd", "/proc/irq", "/nowhere"}
	},
		"wc -c < /etc/passwd; ls /proc/irq | wc -l", result{stdout: "0\n0\n"}},
	{"read-only paths", func(_ *testing.T, s *specs.Spec) { s.Linux.ReadonlyPaths = []string{"/dev/shm", "/nowhere"} },
		"echo > /dev/shm/x", result{code: 1, stderr: "can't create /dev/shm/x: Read-only file system"}},
	{"devices", func(_ *testing.T, s *specs.Spec) {
		s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/sub/null2", Type: "c", Major: 1, Minor: 3, FileMode: new(os.FileMode(0o640)), UID: new(uint32(5)), GID: new(uint32(6))},
			{Path: "/dev/fifo", Type: "p"}}
	}, "stat -c '%n %F %a %u:%g %t,%T' /dev/sub/null2 /dev/fifo; echo > /dev/sub/null2",
		result{stdout: "/dev/sub/null2 character special file 640 5:6 1,3\n/dev/fifo fifo 666 0:0 0,0\n"}},
	{"device rules", func(_ *testing.T, s *specs.Spec) {
		s.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Access: "rwm"}, {Allow: true, Type: "c", Major: new(int64(1)), Minor: new(int64(5)), Access: "r"}}
		s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/kmsg2", Type: "c", Major: 1, Minor: 11}}
	}, "head -c 1 /dev/zero | wc -c; cat /dev/kmsg2", result{code: 1, stdout: "1\n", stderr: "cat: can't open '/dev/kmsg2': Operation not permitted"}},
	{"device over a default one", func(_ *testing.T, s *specs.Spec) {
		s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/ptmx", Type: "c", Major: 5, Minor: 2}}
	},
		"readlink /dev/ptmx", result{stdout: "pts/ptmx\n"}},
	{"unknown kind of device", func(_ *testing.T, s *specs.Spec) { s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/x", Type: "x"}} },
		"true", result{code: 1, stderr: "invalid device type: x|'x' is not a valid device type|device"}},
	{"intel rdt", func(_ *testing.T, s *specs.Spec) { s.Linux.IntelRdt = &specs.LinuxIntelRdt{L3CacheSchema: "L3:0=f"} },
		"true", result{code: 1, stderr: "intelRdt is specified in config, but Intel RDT is not enabled"}},
	{"memory policy", func(_ *testing.T, s *specs.Spec) {
		s.Linux.MemoryPolicy = &specs.LinuxMemoryPolicy{Mode: specs.MpolInterleave, Nodes: "0"}
	},
		"grep -c interleave /proc/self/numa_maps | sed 's/[1-9][0-9]*/some/'", result{stdout: "some\n"}},
	{"unknown memory policy", func(_ *testing.T, s *specs.Spec) {
		s.Linux.MemoryPolicy = &specs.LinuxMemoryPolicy{Mode: "MPOL_NONSENSE"}
	},
		"true", result{code: 1, stderr: "MPOL_NONSENSE"}},
	{"memory policy of nodes that do not exist", func(_ *testing.T, s *specs.Spec) {
		s.Linux.MemoryPolicy = &specs.LinuxMemoryPolicy{Mode: specs.MpolBind, Nodes: "900"}
	},
		"true", result{code: 1, stderr: "mempolicy|memory policy"}},
	{"seccomp without the filter's library is no question", func(_ *testing.T, s *specs.Spec) {
		s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActAllow}
	},
		"true", result{}},
	{"selinux label", func(_ *testing.T, s *specs.Spec) { s.Process.SelinuxLabel = "system_u:system_r:x_t:s0" },
		"true", result{code: 1, stderr: "selinux label is specified in config, but selinux is disabled or not supported"}},
	{"selinux mount label", func(_ *testing.T, s *specs.Spec) { s.Linux.MountLabel = "system_u:object_r:x_t:s0" },
		"true", result{code: 1, stderr: "context=.*invalid argument"}},
	{"apparmor profile", func(_ *testing.T, s *specs.Spec) { s.Process.ApparmorProfile = "nonsense" }, "true", result{code: 1, stderr: "apparmor"}},
	{"rootfs propagation", func(_ *testing.T, s *specs.Spec) { s.Linux.RootfsPropagation = "shared" },
		"awk '$5 == \"/\"' /proc/self/mountinfo | grep -c shared:", result{stdout: "1\n"}},
	{"unknown rootfs propagation", func(_ *testing.T, s *specs.Spec) { s.Linux.RootfsPropagation = "nonsense" },
		"true", result{code: 1, stderr: "rootfsPropagation=nonsense"}},
	{"version that is none", func(_ *testing.T, s *specs.Spec) { s.Version = "nonsense" }, "true", result{}},
	{"duplicate namespace", func(_ *testing.T, s *specs.Spec) {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UTSNamespace})
	},
		"true", result{code: 1, stderr: "malformed spec file: duplicated ns"}},
	{"namespace path that is not there", func(_ *testing.T, s *specs.Spec) {
		withoutNamespace(specs.IPCNamespace)(s)
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.IPCNamespace, Path: "/nowhere"})
	}, "true", result{code: 1, stderr: "/nowhere"}},
}

func TestFieldsOfTheSpecificationAreRuncs(t *testing.T) { checkFields(t, fields) }

func checkFields(t *testing.T, rows []field) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		root := newBusyboxRoot(t) // some fields make files there
		for _, row := range rows {
			t.Run(row.name, func(t *testing.T) {
				r := newRuntime(t, r.program)
				b := newBundle(t, []string{"sh", "-c", row.script}, func(s *specs.Spec) {
					s.Root.Path = root
					row.change(t, s)
				})
				r.shows(row.want, "run", "--bundle", b.dir, "c")
			})
		}
	})
}

// A mount is one of the specification, of a host directory with a file in it
// where the source is empty.
var mountFields = []field{
	mounted("read-only, below too", []string{"rbind", "rro"}, "echo > /m/x; echo > /m/sub/x", result{code: 1, stderr: "/m/x: Read-only file system\n.*/m/sub/x: Read-only file system"}),
	mounted("read-only, above only", []string{"rbind", "ro"}, "echo > /m/sub/x; rm /m/sub/x; echo > /m/x", result{code: 1, stderr: "^sh: can't create /m/x: Read-only file system\n$"}),
	mounted("flags below too", []string{"rbind", "rnosuid", "rnoexec", "rnodev", "rnoatime"}, "grep -E ' /m(/sub)? ' /proc/self/mountinfo | cut -d' ' -f5,6",
		result{stdout: "/m rw,nosuid,nodev,noexec,noatime\n/m/sub rw,nosuid,nodev,noexec,noatime\n"}),
	mounted("flags above only", []string{"bind", "nosuid", "nodev", "noexec"}, "grep -E ' /m(/sub)? ' /proc/self/mountinfo | cut -d' ' -f5,6 | sed s/,relatime//", result{stdout: "/m rw,nosuid,nodev,noexec\n"}),
	mounted("propagation", []string{"rbind", "rshared"}, "grep -E ' /m(/sub)? ' /proc/self/mountinfo | grep -c shared:", result{stdout: "2\n"}),
	mounted("no symlinks", []string{"bind", "nosymfollow"}, "cat /m/link", result{code: 1, stderr: "Too many levels of symbolic links"}),
	mounted("unknown option", []string{"bind", "nonsense"}, "true", result{code: 1, stderr: "nonsense|invalid argument"}),
	mounted("idmap", []string{"bind", "idmap"}, "stat -c %u:%g /m/of1000", result{code: 1, stderr: "idmap"}),
	{"ids of a mount", func(t *testing.T, s *specs.Spec) {
		mountFolder(t, s, []string{"bind"})
		m := &s.Mounts[len(s.Mounts)-1]
		m.UIDMappings = []specs.LinuxIDMapping{{ContainerID: 1000, HostID: 5, Size: 1}}
		m.GIDMappings = []specs.LinuxIDMapping{{ContainerID: 1000, HostID: 6, Size: 1}}
	}, "stat -c %u:%g /m/of1000", result{stdout: "5:6\n"}},
	{"ids of one kind only", func(t *testing.T, s *specs.Spec) {
		mountFolder(t, s, []string{"bind"})
		s.Mounts[len(s.Mounts)-1].UIDMappings = []specs.LinuxIDMapping{{ContainerID: 1000, HostID: 5, Size: 1}}
	}, "true", result{code: 1, stderr: "id-mapped mount|idmapped|gidMappings|mappings"}},
	{"ids of a mount that is no bind", func(_ *testing.T, s *specs.Spec) {
		id := []specs.LinuxIDMapping{{ContainerID: 1000, HostID: 5, Size: 1}}
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/m", Type: "tmpfs", Source: "tmpfs", UIDMappings: id, GIDMappings: id})
	}, "true", result{code: 1, stderr: "bind"}},
	{"source that is not there", func(_ *testing.T, s *specs.Spec) {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/m", Type: "bind", Source: "/nowhere", Options: []string{"bind"}})
	}, "true", result{code: 1, stderr: "/nowhere.*no such file or directory"}},
	{"relative destination", func(t *testing.T, s *specs.Spec) {
		mountFolder(t, s, []string{"bind"})
		s.Mounts[len(s.Mounts)-1].Destination = "m"
	}, "cat /m/sub/../of1000", result{stdout: "content\n"}},
	{"tmpfs that copies up", func(_ *testing.T, s *specs.Spec) {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/etc", Type: "tmpfs", Source: "tmpfs", Options: []string{"tmpcopyup", "size=1m"}})
	}, "head -n1 /etc/passwd; echo x > /etc/new; cat /etc/new", result{stdout: "root:x:0:0:root:/root:/bin/sh\nx\n"}},
	{"proc over a directory of another type", func(_ *testing.T, s *specs.Spec) {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/proc/sys", Type: "tmpfs", Source: "tmpfs"})
	}, "true", result{code: 1, stderr: "/proc"}},
	{"all devices of the network", func(t *testing.T, s *specs.Spec) {
		makeLink(t, "moved0")
		s.Linux.NetDevices = map[string]specs.LinuxNetDevice{"moved0": {Name: "inside0"}}
	}, "ls /sys/class/net | grep -v lo", result{stdout: "inside0\n"}},
	{"network device that is not there", func(_ *testing.T, s *specs.Spec) {
		s.Linux.NetDevices = map[string]specs.LinuxNetDevice{"nowhere0": {}}
	},
		"true", result{code: 1, stderr: "nowhere0"}},
	{"network device in the host's network", func(_ *testing.T, s *specs.Spec) {
		withoutNamespace(specs.NetworkNamespace)(s)
		s.Linux.NetDevices = map[string]specs.LinuxNetDevice{"lo": {}}
	}, "true", result{code: 1, stderr: "unable to move network devices without a NET namespace"}},
}

func TestMountsOfTheSpecificationAreRuncs(t *testing.T) { checkFields(t, mountFields) }

func mounted(name string, options []string, script string, want result) field {
	return field{name, func(t *testing.T, s *specs.Spec) { mountFolder(t, s, options) }, script, want}
}

// mountFolder adds a mount at /m: a directory with a file of user 1000, a link
// to it, and a file system mounted at sub.
func mountFolder(t *testing.T, s *specs.Spec, options []string) {
	t.Helper()
	dir := t.TempDir()
	file, sub := filepath.Join(dir, "of1000"), filepath.Join(dir, "sub")
	for _, err := range []error{
		os.WriteFile(file, []byte("content\n"), 0o644), os.Chown(file, 1000, 1000), os.Symlink("of1000", filepath.Join(dir, "link")),
		os.Mkdir(sub, 0o755), unix.Mount("tmpfs", sub, "tmpfs", 0, ""),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(sub, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	s.Mounts = append(s.Mounts, specs.Mount{Destination: "/m", Type: "bind", Source: dir, Options: options})
}

// makeLink makes a network link, which is gone with the namespace that it is
// moved to.
func makeLink(t *testing.T, name string) {
	t.Helper()
	if got := run(t, exec.Command("ip", "link", "add", name, "type", "veth", "peer", "name", name+"p")); got.code != 0 {
		t.Fatalf("ip link add: %s", got.stderr)
	}
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", name).Run() })
}
