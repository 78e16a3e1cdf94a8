package integration

// An option is what a container prints because of flags of run. Without them
// the same script prints something else, or the flags have shown nothing.
type option struct {
	name   string
	only   string
	flags  []string
	script string
	prints string
}

func optionCases() []cliCase {
	var cases []cliCase
	for _, o := range options {
		cases = append(cases, cliCase{o.name, o.only, func(c cli) {
			with := start(c, c.command(runArgs(o.script, append([]string{"--rm"}, o.flags...)...)...))
			without := start(c, c.command(runArgs(o.script, "--rm")...))
			if got := with.wait(); got.stdout != o.prints {
				c.Errorf("%+v, want %q", got, o.prints)
			}
			if got := without.wait(); got.stdout == o.prints {
				c.Errorf("prints %q without %q as well", got.stdout, o.flags)
			}
		}})
	}
	return cases
}

var options = []option{
	// What the command finds.
	{name: "workdir", flags: []string{"--workdir", "/etc"}, script: "pwd", prints: "/etc\n"},
	{name: "workdir is made", only: "docker", flags: []string{"--workdir", "/made/here"}, script: "pwd", prints: "/made/here\n"},
	{name: "environment", flags: []string{"--env", "A=b c", "--env", "PATH=/bin"}, script: "echo $A $PATH", prints: "b c /bin\n"},
	{name: "entrypoint", flags: []string{"--entrypoint", "echo"}, script: "true", prints: "sh -c true\n"},
	{name: "user by name", flags: []string{"--user", "user"}, script: "id", prints: "uid=1000(user) gid=1000(user) groups=1000(user)\n"},
	{name: "user joins a group", flags: []string{"--group-add", "7"}, script: "id -G | tr ' ' '\\n' | grep -x 7", prints: "7\n"},
	{name: "init is PID 1", flags: []string{"--init"}, script: "grep -c -- -init$ /proc/1/comm", prints: "1\n"},
	{name: "umask", only: "podman", flags: []string{"--umask", "0077"}, script: "umask", prints: "0077\n"},
	{name: "personality", only: "podman", flags: []string{"--personality", "LINUX32"}, script: "uname -m", prints: "i686\n"},

	// Names.
	{name: "hostname", flags: []string{"--hostname", "box"}, script: "hostname", prints: "box\n"},
	{name: "domain name", only: "docker", flags: []string{"--domainname", "lan"}, script: "cat /proc/sys/kernel/domainname", prints: "lan\n"},
	{name: "added host", flags: []string{"--add-host", "a:192.0.2.1"}, script: "grep -w a /etc/hosts | tr '\\t' ' '", prints: "192.0.2.1 a\n"},
	{name: "name servers", flags: []string{"--dns", "192.0.2.1", "--dns-search", "lan", "--dns-option", "ndots:2"}, script: "grep ^[a-z] /etc/resolv.conf | sort", prints: "nameserver 192.0.2.1\noptions ndots:2\nsearch lan\n"},
	{name: "MAC address", flags: []string{"--mac-address", "02:00:00:00:00:01"}, script: "cat /sys/class/net/eth0/address", prints: "02:00:00:00:00:01\n"},

	// File systems.
	{name: "read-only root", flags: []string{"--read-only"}, script: "touch /new 2>&1", prints: "touch: /new: Read-only file system\n"},
	{name: "tmpfs is full at its size", flags: []string{"--tmpfs", "/t:size=64k"}, script: "dd if=/dev/zero of=/t/f bs=1k count=100 2>/dev/null; wc -c < /t/f", prints: "65536\n"},
	{name: "tmpfs runs no programs", flags: []string{"--tmpfs", "/t:noexec"}, script: "cp /bin/busybox /t && /t/busybox true 2>&1", prints: "sh: /t/busybox: Permission denied\n"},
	{name: "shared memory is full at its size", flags: []string{"--shm-size", "1m"}, script: "dd if=/dev/zero of=/dev/shm/f bs=1k count=2000 2>/dev/null; wc -c < /dev/shm/f", prints: "1048576\n"},

	// Privileges; each is tried, not read.
	{name: "added capability mounts", flags: []string{"--cap-add", "SYS_ADMIN"}, script: "mount -t tmpfs t /tmp && echo mounted", prints: "mounted\n"},
	{name: "added capability changes links", flags: []string{"--cap-add", "NET_ADMIN"}, script: "ip link set lo down && echo down", prints: "down\n"},
	{name: "dropped capability", flags: []string{"--cap-drop", "MKNOD"}, script: "mknod /tmp/null c 1 3 2>&1", prints: "mknod: /tmp/null: Operation not permitted\n"},
	{name: "all capabilities dropped but one", flags: []string{"--cap-drop", "ALL", "--cap-add", "CHOWN"}, script: "chown 7 /tmp && echo chowned; chmod 600 /tmp 2>&1; grep CapEff /proc/self/status", prints: "chowned\nchmod: /tmp: Operation not permitted\nCapEff:\t0000000000000001\n"},
	{name: "no new privileges", flags: []string{"--security-opt", "no-new-privileges"}, script: "chmod u+s /bin/busybox && su user -c 'su 2>&1 </dev/null'", prints: "su: must be suid to work properly\n"},
	{name: "no seccomp filter", flags: []string{"--security-opt", "seccomp=unconfined"}, script: "linux64 -R echo ran 2>/dev/null", prints: "ran\n"},
	{name: "no masked or read-only paths", only: "docker", flags: []string{"--security-opt", "systempaths=unconfined"}, script: "cut -d' ' -f2 /proc/mounts | grep -c '^/proc/'", prints: "0\n"},
	{name: "no masked or read-only paths", only: "podman", flags: []string{"--security-opt", "unmask=ALL"}, script: "cut -d' ' -f2 /proc/mounts | grep -c '^/proc/'", prints: "0\n"},
	{name: "one more masked path", only: "podman", flags: []string{"--security-opt", "mask=/proc/uptime"}, script: "wc -c < /proc/uptime", prints: "0\n"},
	{name: "device", flags: []string{"--device", "/dev/fuse"}, script: "(: </dev/fuse) && (: >/dev/fuse) && echo opened", prints: "opened\n"},
	{name: "device under another name", flags: []string{"--device", "/dev/fuse:/dev/other"}, script: "(: </dev/other) && echo opened", prints: "opened\n"},
	{name: "device to read only", flags: []string{"--device", "/dev/fuse:/dev/fuse:r"}, script: "(: </dev/fuse) && echo opened; (: >/dev/fuse) 2>&1", prints: "opened\nsh: can't create /dev/fuse: Operation not permitted\n"},
	{name: "device cgroup rule", flags: []string{"--device-cgroup-rule", "c 10:229 r"}, script: "mknod /tmp/fuse c 10 229; (: </tmp/fuse) && echo opened; (: >/tmp/fuse) 2>&1", prints: "opened\nsh: can't create /tmp/fuse: Operation not permitted\n"},

	// The kernel's settings for the container.
	{name: "sysctls", flags: []string{"--sysctl", "net.ipv4.ip_default_ttl=77", "--sysctl", "kernel.msgmax=4096"}, script: "cat /proc/sys/net/ipv4/ip_default_ttl /proc/sys/kernel/msgmax", prints: "77\n4096\n"},
	{name: "OOM score", flags: []string{"--oom-score-adj", "500"}, script: "cat /proc/1/oom_score_adj", prints: "500\n"},
	{name: "private cgroup namespace", flags: []string{"--cgroupns", "private"}, script: "cut -d: -f3 /proc/self/cgroup | sort -u", prints: "/\n"},

	// Limits that can be read or met at once. nproc and nofile are there for
	// podman, whose own defaults need CAP_SYS_RESOURCE.
	{name: "open files", flags: []string{"--ulimit", "nofile=100:200", "--ulimit", "nproc=1000:1000"}, script: "ulimit -n; ulimit -Hn", prints: "100\n200\n"},
	{name: "file size", flags: []string{"--ulimit", "fsize=4096", "--ulimit", "nproc=1000:1000", "--ulimit", "nofile=100:200"}, script: "dd if=/dev/zero of=/f bs=1k count=10 2>/dev/null; wc -c < /f", prints: "4096\n"},
	{name: "CPU set", flags: []string{"--cpuset-cpus", "0"}, script: "taskset 1 true && grep Cpus_allowed_list /proc/self/status; nproc", prints: "Cpus_allowed_list:\t0\n1\n"},
	{name: "CPU shares", flags: []string{"--cpu-shares", "512"}, script: "cat /sys/fs/cgroup/cpu/cpu.shares", prints: "512\n"},
	{name: "swap", flags: []string{"--memory", "64m", "--memory-swap", "96m"}, script: "cd /sys/fs/cgroup/memory; cat memory.limit_in_bytes memory.memsw.limit_in_bytes", prints: "67108864\n100663296\n"},
	{name: "memory reservation", flags: []string{"--memory-reservation", "32m"}, script: "cat /sys/fs/cgroup/memory/memory.soft_limit_in_bytes", prints: "33554432\n"},
	{name: "swappiness", flags: []string{"--memory", "64m", "--memory-swappiness", "10"}, script: "cat /sys/fs/cgroup/memory/memory.swappiness", prints: "10\n"},
}
