package kernel

import "golang.org/x/sys/unix"

// The features that code or errors name.
const (
	Privilege               Feature = "privilege"
	IDRange                 Feature = "id_range"
	UserNamespaces          Feature = "user_namespaces"
	MountNamespaces         Feature = "mount_namespaces"
	PIDNamespaces           Feature = "pid_namespaces"
	NetworkNamespaces       Feature = "network_namespaces"
	IPCNamespaces           Feature = "ipc_namespaces"
	UTSNamespaces           Feature = "uts_namespaces"
	CgroupNamespaces        Feature = "cgroup_namespaces"
	TimeNamespaces          Feature = "time_namespaces"
	MountAPI                Feature = "mount_api"
	MountAttributes         Feature = "mount_attributes"
	IDMappedMounts          Feature = "idmapped_mounts"
	IDMappedTmpfs           Feature = "idmapped_tmpfs"
	Overlay                 Feature = "overlay"
	HostOverlay             Feature = "host_overlay"
	OverlayInUserNamespaces Feature = "overlay_in_user_namespaces"
	Procfs                  Feature = "procfs"
	Openat2                 Feature = "openat2"
	FileEvents              Feature = "file_events"
	Pidfd                   Feature = "pidfd"
	CloneIntoCgroup         Feature = "clone_into_cgroup"
	CgroupDevices           Feature = "cgroup_devices"
	CloseRange              Feature = "close_range"
	Ptrace                  Feature = "ptrace"
	MemfdExec               Feature = "memfd_exec"
	SeccompFilter           Feature = "seccomp_filter"
	SeccompActions          Feature = "seccomp_actions"
	SeccompNotify           Feature = "seccomp_notify"
	Landlock                Feature = "landlock"
	LandlockNetwork         Feature = "landlock_network"
	LandlockScopes          Feature = "landlock_scopes"
	Nftables                Feature = "nftables"
)

const (
	noSandbox = "no sandbox starts: "
	// privileged is the way for a container to get the features that container managers
	// withhold.
	privileged = "in a container, start that one with --privileged"
)

// table is data: nothing changes it.
var table = []Info{
	{
		Name: Privilege, Group: "privileges", Title: "root's capabilities", Need: Required, probe: probePrivilege,
		Lost: noSandbox + "only root may mount, and give a sandbox other ids than the caller's",
		Get:  "run it as root, with sudo; " + privileged,
	}, {
		Name: IDRange, Group: "privileges", Title: "65,536 ids for a user namespace", Since: v(3, 8), Need: Required, probe: probeIDRange,
		Lost: noSandbox + "each needs ids of its own that no file and no other sandbox has",
		Get: "as root in a container, have it started with --userns=host by root; as an ordinary user, " +
			"install newuidmap (Debian and Ubuntu: apt install uidmap; Fedora: shadow-utils) and grant ids: " +
			"usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER",
	},

	namespace(UserNamespaces, "user namespaces", v(3, 8), probeUserNamespaces,
		"root inside would be root outside",
		"a kernel with CONFIG_USER_NS=y; sysctl -w user.max_user_namespaces=15000"),
	namespace(MountNamespaces, "mount namespaces", v(2, 4), probeIn(0, tryNamespace(unix.CLONE_NEWNS)),
		"a sandbox would see the host's files and mounts", "a kernel with CONFIG_NAMESPACES=y"),
	namespace(PIDNamespaces, "pid namespaces", v(2, 6), probeIn(0, tryNamespace(unix.CLONE_NEWPID)),
		"a sandbox would reach the host's processes", "a kernel with CONFIG_PID_NS=y"),
	namespace(NetworkNamespaces, "network namespaces", v(2, 6), probeIn(0, tryNamespace(unix.CLONE_NEWNET)),
		"a sandbox would reach the host's network", "a kernel with CONFIG_NET_NS=y"),
	namespace(IPCNamespaces, "ipc namespaces", v(2, 6), probeIn(0, tryNamespace(unix.CLONE_NEWIPC)),
		"a sandbox would reach shared memory and message queues of the host", "a kernel with CONFIG_IPC_NS=y"),
	namespace(UTSNamespaces, "uts namespaces", v(2, 6), probeIn(0, tryNamespace(unix.CLONE_NEWUTS)),
		"a sandbox could have no hostname of its own", "a kernel with CONFIG_UTS_NS=y"),
	namespace(CgroupNamespaces, "cgroup namespaces", v(4, 6), probeIn(0, tryNamespace(unix.CLONE_NEWCGROUP)),
		"a sandbox would see the host's cgroups", "a kernel with CONFIG_CGROUPS=y"),
	{
		Name: TimeNamespaces, Group: "namespaces", Title: "time namespaces", Since: v(5, 6), Need: Useful,
		probe: probeIn(0, tryNamespace(unix.CLONE_NEWTIME)),
		Lost:  "OCI bundles that ask for a time namespace do not start; sandboxes have none",
		Get:   "a kernel with CONFIG_TIME_NS=y",
	},

	{
		Name: MountAPI, Group: "mounts", Title: "the mount API by descriptors", Since: v(5, 2), Need: Required, probe: probeIn(unix.CLONE_NEWNS, tryMountAPI),
		Lost: noSandbox + "roots and workspaces are mounted by descriptors, since no other process can swap these (fsopen, fsmount, open_tree, move_mount)",
		Get:  "Linux 5.2 or newer; " + privileged,
	}, {
		Name: MountAttributes, Group: "mounts", Title: "attributes of whole mount trees", Since: v(5, 12), Need: Required, probe: probeIn(unix.CLONE_NEWNS, tryMountAttributes),
		Lost: noSandbox + "a host tree with mounts in it could not be made read-only as a whole (mount_setattr)",
		Get:  "Linux 5.12 or newer; " + privileged,
	}, {
		Name: IDMappedMounts, Group: "mounts", Title: "idmapped mounts", Since: v(5, 12), Need: Useful, probe: probeIDMappedMounts,
		Lost: "the sandbox's user has the uid of the workspace's owner on the host, a workspace of root is refused, and read-only files belong to nobody; the Result says so",
		Get:  "Linux 5.12 or newer, and a file system that supports them (ext4, xfs: 5.12; btrfs: 5.15; tmpfs: 6.3)",
	}, {
		Name: IDMappedTmpfs, Group: "mounts", Title: "idmapped mounts of tmpfs", Since: v(6, 3), Need: Useful, probe: probeIDMappedTmpfs,
		Lost: "as without idmapped mounts, for workspaces on a tmpfs; /tmp is often a tmpfs",
		Get:  "Linux 6.3 or newer, or a workspace on another file system",
	}, {
		Name: Procfs, Group: "mounts", Title: "a /proc of its own in a user namespace", Since: v(3, 8), Need: Required, probe: inUserNamespace(unix.CLONE_NEWNS|unix.CLONE_NEWPID, tryProcfs),
		Lost: noSandbox + "it would see the host's processes in /proc, or none",
		Get: "in a container, uncover its /proc: docker run --security-opt systempaths=unconfined, " +
			"podman run --security-opt unmask=ALL, Kubernetes procMount: Unmasked",
	}, {
		Name: Openat2, Group: "mounts", Title: "openat2", Since: v(5, 6), Need: Required, probe: probeHere(tryOpenat2),
		Lost: noSandbox + "the runtime could not safely open paths that a sandbox can change",
		Get:  "Linux 5.6 or newer; " + privileged,
	}, {
		Name: FileEvents, Group: "mounts", Title: "events of files by name", Since: v(5, 17), Need: Useful, probe: probeFileEvents,
		Lost: "a Result does not tell which files a command has changed (fanotify)",
		Get:  "Linux 5.17 or newer with CONFIG_FANOTIFY=y; if other programs use all groups, sysctl -w fs.fanotify.max_user_groups=1024; " + privileged,
	}, {
		Name: Overlay, Group: "mounts", Title: "overlay", Since: v(3, 18), Need: Useful, probe: probeIn(unix.CLONE_NEWNS, tryOverlay(overlayOptions)),
		Lost: "no writes on a layer: --overlay fails",
		Get:  "modprobe overlay; a kernel with CONFIG_OVERLAY_FS; " + privileged,
	}, {
		Name: HostOverlay, Group: "mounts", Title: "a read-only overlay over /usr", Since: v(5, 12), Need: Useful, probe: probeHostOverlay,
		Lost: "locks and inotify inside reach programs of the host that use the same files of /usr; the Result says so",
		Get:  "as for overlay; nothing mounted below /usr; a host whose /usr is not an overlay over another one",
	}, {
		Name: OverlayInUserNamespaces, Group: "mounts", Title: "overlay in user namespaces", Since: v(5, 11), Need: Useful, probe: inUserNamespace(unix.CLONE_NEWNS, tryOverlay(overlayOptions+",userxattr")),
		Lost: "nothing yet: no present function needs it",
		Get:  "Linux 5.11 or newer with overlay",
	},

	{
		Name: MemfdExec, Group: "processes", Title: "programs in sealed memory", Since: v(3, 17), Need: Required, probe: probeMemfdExec,
		Lost: noSandbox + "its PID 1 is a sealed memfd, so that no process inside can change or see the file",
		Get:  "sysctl -w vm.memfd_noexec=1 where it is 2; else allow it in the security module that forbids it",
	}, {
		Name: Pidfd, Group: "processes", Title: "pidfds", Since: v(5, 3), Need: Required, probe: probeHere(tryPidfd),
		Lost: noSandbox + "signals could only go to a process number, and another process may have this number meanwhile",
		Get:  "Linux 5.3 or newer; " + privileged,
	}, {
		Name: CloseRange, Group: "processes", Title: "close_range", Since: v(5, 11), Need: Required, probe: probeHere(tryCloseRange),
		Lost: noSandbox + "a command in a sandbox must not inherit a descriptor, and PID 1 closes all of them at once",
		Get:  "Linux 5.11 or newer; " + privileged,
	}, {
		Name: Ptrace, Group: "processes", Title: "tracing one's own child", Since: v(2, 6), Need: Required, probe: probeHere(tryPtrace),
		Lost: noSandbox + "the user namespaces of sandboxes and of idmapped mounts begin in a child that ptrace stops",
		Get:  privileged,
	}, {
		Name: CloneIntoCgroup, Group: "processes", Title: "starting a process in its cgroup", Since: v(5, 7), Need: Useful, probe: probeHere(tryCloneIntoCgroup),
		Lost: "a process is moved to its cgroup after its start, which costs milliseconds (clone3 with CLONE_INTO_CGROUP)",
		Get:  "Linux 5.7 or newer; in a container, a seccomp profile that lets clone3 through",
	},

	{
		Name: CgroupDevices, Group: "cgroups", Title: "rules on devices", Since: v(4, 15), Need: Required, probe: probeCgroupDevices,
		Lost: noSandbox + "device nodes would give access to the host's devices",
		Get:  "root with CAP_NET_ADMIN, which cgroup v2 asks for to attach the rules as a BPF program; a kernel with CONFIG_CGROUP_BPF=y; " + privileged,
	},

	{
		Name: SeccompFilter, Group: "seccomp", Title: "seccomp filters", Since: v(3, 17), Need: Required, probe: probeHere(trySeccompFilter),
		Lost: noSandbox + "each runs under a filter of system calls",
		Get:  "a kernel with CONFIG_SECCOMP_FILTER=y",
	}, {
		Name: SeccompActions, Group: "seccomp", Title: "seccomp's kill_process and log", Since: v(4, 14), Need: Useful, probe: probeSeccompActions,
		Lost: "profiles that use these actions are refused",
		Get:  "Linux 4.14 or newer",
	}, {
		Name: SeccompNotify, Group: "seccomp", Title: "seccomp's user notification", Since: v(5, 0), Need: Useful, probe: probeHere(trySeccompNotify),
		Lost: "OCI bundles with a seccomp listener do not start, and results do not tell of refused system calls",
		Get:  "Linux 5.0 or newer",
	},

	landlock(Landlock, "Landlock", v(5, 13), 1,
		"nothing yet: it is planned as a second wall behind the mounts"),
	landlock(LandlockNetwork, "Landlock's rules on TCP ports", v(6, 7), 4,
		"nothing yet: it is planned as a second wall behind the network namespace"),
	landlock(LandlockScopes, "Landlock's scopes", v(6, 12), 6,
		"nothing yet: it is planned as a second wall between the processes of one sandbox (signals, abstract sockets)"),

	{
		Name: Nftables, Group: "network", Title: "nftables", Since: v(5, 2), Need: Useful, probe: probeNftables,
		Lost: "--network full fails: its packet filter is a table of the family inet with address translation",
		Get:  "modprobe nf_tables nft_chain_nat nft_connlimit nft_limit; a kernel with CONFIG_NF_TABLES_INET, CONFIG_NFT_NAT, CONFIG_NFT_CONNLIMIT and CONFIG_NFT_LIMIT; " + privileged,
	},
}

func v(major, minor int) Version { return Version{major, minor} }

func namespace(name Feature, title string, since Version, probe probe, lost, get string) Info {
	return Info{
		Name: name, Group: "namespaces", Title: title, Since: since, Need: Required, probe: probe,
		Lost: noSandbox + lost, Get: get + "; " + privileged,
	}
}

func landlock(name Feature, title string, since Version, version int, lost string) Info {
	return Info{
		Name: name, Group: "landlock", Title: title, Since: since, Need: Useful, probe: probeLandlock(version), Lost: lost,
		Get: "Linux " + since.String() + " or newer with CONFIG_SECURITY_LANDLOCK=y; if it is off at boot, add landlock to the lsm= list of the kernel's command line",
	}
}
