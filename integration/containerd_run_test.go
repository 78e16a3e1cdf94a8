package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// TestCtrRun goes through the options of ctr run: each case looks from inside
// the container, or at the host, at what the option is for.
func TestCtrRun(t *testing.T) {
	leavesNothing(t)
	need(t, peers())
	c := startContainerd(t)
	c.warmUp(t)
	for _, test := range ctrRunCases {
		t.Run(test.name, func(t *testing.T) {
			leavesNothing(t)
			test.test(t, c)
		})
	}
}

// warmUp runs a first container: what containerd makes once is there from then
// on.
func (c *containerd) warmUp(t *testing.T) {
	t.Helper()
	before := processes(t)
	wantStatus(t, c.run(t, shell("first", "true")), 0)
	keepersGo(t, before)
}

// keepersGo waits until no processes are there but those before. A shim ends after
// its task is removed; until then, a task of the same id may be given to it.
func keepersGo(t *testing.T, before host) {
	t.Helper()
	eventually(t, "the container's keepers are gone", func() bool { return before.diff(processes(t)) == "" })
}

// runWith is ctr run with the binary under test. The root is read-only, for
// all share it; only a writable container gets its own.
func (c *containerd) runWith(flags []string, id string, args ...string) *exec.Cmd {
	all := append([]string{"run", "--runc-binary", c.runtime, "--env", "PATH=/bin"}, flags...)
	return c.client(append(append(all, "--read-only", "--rootfs", c.root, id), args...)...)
}

// inside returns what a script prints in a container that was run with flags.
func (c *containerd) inside(t *testing.T, script string, flags ...string) string {
	t.Helper()
	c.insides++
	id := "inside" + strconv.Itoa(c.insides)
	text, status := c.logged(t, id, func(more ...string) *exec.Cmd {
		return c.runWith(append(more, flags...), id, "sh", "-c", livesOn(script))
	})
	if status != 0 {
		t.Fatalf("%q with %q: status %d, %q", script, flags, status, text)
	}
	return text
}

// detached starts a container that the test's end removes, and returns its
// process id. Nobody reads what it prints, unless the flags say who.
func (c *containerd) detached(t *testing.T, id, script string, flags ...string) int {
	t.Helper()
	pidFile := filepath.Join(t.TempDir(), "pid")
	if len(flags) == 0 {
		flags = []string{"--null-io"}
	}
	t.Cleanup(func() { c.discard(id) })
	wantStatus(t, c.runWith(append([]string{"--detach", "--pid-file", pidFile}, flags...), id, "sh", "-c", script), 0)
	pid, err := strconv.Atoi(strings.TrimSpace(content(t, pidFile)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// discard removes whatever is left of a container; nothing may be.
func (c *containerd) discard(id string) {
	_ = c.client("task", "delete", "--force", id).Run()
	_ = c.client("container", "delete", id).Run()
}

// must returns what a ctr command that works prints.
func (c *containerd) must(t *testing.T, args ...string) string {
	t.Helper()
	got := run(t, c.client(args...))
	if got.code != 0 {
		t.Fatalf("ctr %q: %+v", args, got)
	}
	return got.stdout
}

// refuses runs a ctr command that fails and says why.
func (c *containerd) refuses(t *testing.T, why string, args ...string) {
	t.Helper()
	if got := run(t, c.client(args...)); got.code == 0 || !strings.Contains(got.stderr, why) {
		t.Errorf("ctr %q: got %+v, want a failure with %q", args, got, why)
	}
}

var ctrRunCases = []struct {
	name string
	test func(*testing.T, *containerd)
}{
	{"env", func(t *testing.T, c *containerd) {
		file := filepath.Join(t.TempDir(), "env")
		if err := os.WriteFile(file, []byte("FILE=from a file\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		got := c.inside(t, `echo "$A|$EMPTY|$FILE"`, "--env", "A=b c", "--env", "EMPTY=", "--env-file", file)
		wantEqual(t, got, "b c||from a file\n")
	}},
	{"cwd", func(t *testing.T, c *containerd) {
		wantEqual(t, c.inside(t, "pwd", "--cwd", "/tmp"), "/tmp\n")
	}},
	{"read-only root", func(t *testing.T, c *containerd) {
		wantEqual(t, c.inside(t, "touch /x 2>&1; test ! -e /x"), "touch: /x: Read-only file system\n")
	}},
	{"bind mount", func(t *testing.T, c *containerd) {
		dir := t.TempDir()
		c.inside(t, "echo inside > /tmp/f", "--mount", "type=bind,src="+dir+",dst=/tmp,options=rbind:rw")
		wantEqual(t, content(t, filepath.Join(dir, "f")), "inside\n")
	}},
	{"read-only bind mount", func(t *testing.T, c *containerd) {
		got := c.inside(t, "touch /tmp/f 2>&1; test ! -e /tmp/f", "--mount", "type=bind,src="+t.TempDir()+",dst=/tmp,options=rbind:ro")
		wantEqual(t, got, "touch: /tmp/f: Read-only file system\n")
	}},
	{"tmpfs mount of a size", func(t *testing.T, c *containerd) {
		got := c.inside(t, "dd if=/dev/zero of=/tmp/f bs=64k count=32 2>/dev/null; stat -c %s /tmp/f",
			"--mount", "type=tmpfs,src=tmpfs,dst=/tmp,options=size=1m:nosuid")
		wantEqual(t, got, "1048576\n")
	}},
	{"cap-add and cap-drop", func(t *testing.T, c *containerd) {
		plain := capabilities(t, c.inside(t, "grep CapEff /proc/self/status"))
		wantEqual(t, plain&(1<<unix.CAP_SYS_PTRACE|1<<unix.CAP_CHOWN), uint64(1<<unix.CAP_CHOWN))
		changed := capabilities(t, c.inside(t, "grep CapEff /proc/self/status", "--cap-add", "CAP_SYS_PTRACE", "--cap-drop", "CAP_CHOWN"))
		wantEqual(t, changed, plain&^(1<<unix.CAP_CHOWN)|1<<unix.CAP_SYS_PTRACE)
		wantEqual(t, c.inside(t, "chown 1 /dev/shm 2>&1 || true", "--cap-drop", "CAP_CHOWN"), "chown: /dev/shm: Operation not permitted\n")
	}},
	{"no new privileges", func(t *testing.T, c *containerd) {
		wantEqual(t, c.inside(t, "grep NoNewPrivs /proc/self/status"), "NoNewPrivs:\t1\n")
		wantEqual(t, c.inside(t, "grep NoNewPrivs /proc/self/status", "--allow-new-privs"), "NoNewPrivs:\t0\n")
	}},
	{"default seccomp profile", func(t *testing.T, c *containerd) {
		probe := "grep Seccomp: /proc/self/status; unshare -U true 2>/dev/null && echo a user namespace || echo refused"
		wantEqual(t, c.inside(t, probe), "Seccomp:\t0\na user namespace\n")
		wantEqual(t, c.inside(t, probe, "--seccomp"), "Seccomp:\t2\nrefused\n")
	}},
	{"seccomp profile of one's own", func(t *testing.T, c *containerd) {
		profile := filepath.Join(t.TempDir(), "profile.json")
		rules := `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 122}]}`
		if err := os.WriteFile(profile, []byte(rules), 0o600); err != nil {
			t.Fatal(err)
		}
		got := c.inside(t, "mkdir /dev/shm/d 2>&1 || true", "--seccomp", "--seccomp-profile", profile)
		wantEqual(t, got, "mkdir: can't create directory '/dev/shm/d': Disk quota exceeded\n")
	}},
	{"device", func(t *testing.T, c *containerd) {
		open := "mknod /dev/k c 10 237 && (exec 3</dev/k) 2>&1 && echo open || true" // loop-control
		if got := c.inside(t, open); !strings.Contains(got, "Operation not permitted") {
			t.Errorf("a device that was not given: %q", got)
		}
		wantEqual(t, c.inside(t, "stat -c %t:%T /dev/loop-control; "+open, "--device", "/dev/loop-control"), "a:ed\nopen\n")
	}},
	{"own network", func(t *testing.T, c *containerd) {
		wantEqual(t, c.inside(t, "ls /sys/class/net"), "lo\n")
	}},
	{"host network", func(t *testing.T, c *containerd) {
		// ctr mounts the host's hosts and resolv.conf, so the root must have them.
		root := newBusyboxRoot(t)
		got, _ := c.logged(t, "networked", func(flags ...string) *exec.Cmd {
			flags = append(flags, "--runc-binary", c.runtime, "--env", "PATH=/bin", "--net-host")
			return c.client(append(append([]string{"run"}, flags...), "--rootfs", root, "networked", "sh", "-c", livesOn("readlink /proc/self/ns/net"))...)
		})
		wantEqual(t, strings.TrimSpace(got), link(t, "/proc/self/ns/net"))
	}},
	{"joins namespaces", func(t *testing.T, c *containerd) {
		pid := c.detached(t, "other", "exec sleep 1000")
		other := func(kind string) string { return link(t, fmt.Sprintf("/proc/%d/ns/%s", pid, kind)) }
		path := fmt.Sprintf("/proc/%d/ns/", pid)
		got := c.inside(t, "for n in net ipc uts pid; do readlink /proc/self/ns/$n; done",
			"--with-ns", "network:"+path+"net", "--with-ns", "ipc:"+path+"ipc", "--with-ns", "uts:"+path+"uts")
		lines := strings.Fields(got)
		wantEqual(t, lines[:3], []string{other("net"), other("ipc"), other("uts")})
		if lines[3] == other("pid") {
			t.Error("shares the pid namespace, which was not asked for")
		}
	}},
	{"cgroup", func(t *testing.T, c *containerd) {
		pid := c.detached(t, "grouped", "exec sleep 1000", "--null-io", "--cgroup", "/ctr-test/grouped")
		for controllers, group := range cgroupsOf(t, pid) {
			if controllers != "" && group != "/ctr-test/grouped" {
				t.Errorf("%s: in %s", controllers, group)
			}
		}
		c.discard("grouped")
		removeGround(t, "ctr-test")
	}},
	{"cpu limit is in force", func(t *testing.T, c *containerd) {
		pid := c.detached(t, "busy", "while :; do :; done", "--null-io", "--cpus", "0.2", "--cpu-shares", "512")
		group := groupByController(t, pid, "cpu")
		wantEqual(t, content(t, filepath.Join(group, "cpu.cfs_quota_us")), "20000\n")
		wantEqual(t, content(t, filepath.Join(group, "cpu.shares")), "512\n")
		eventually(t, "it is throttled", func() bool {
			return number(t, filepath.Join(group, "cpu.stat"), "nr_throttled") > 2
		})
	}},
	{"cpu quota and period", func(t *testing.T, c *containerd) {
		pid := c.detached(t, "quota", "exec sleep 1000", "--null-io", "--cpu-quota", "30000", "--cpu-period", "50000")
		group := groupByController(t, pid, "cpu")
		wantEqual(t, content(t, filepath.Join(group, "cpu.cfs_quota_us")), "30000\n")
		wantEqual(t, content(t, filepath.Join(group, "cpu.cfs_period_us")), "50000\n")
	}},
	{"pids limit is in force", func(t *testing.T, c *containerd) {
		got := c.configured(t, "for i in $(seq 40); do sleep 1000 & done; echo no limit", func(s *specs.Spec) {
			s.Linux.Resources.Pids = &specs.LinuxPids{Limit: new(int64(20))} // the runtime's threads in it fit, too
		})
		if got.code == 0 || !strings.Contains(got.stdout, "can't fork") {
			t.Errorf("got %+v", got)
		}
	}},
	{"ulimits", func(t *testing.T, c *containerd) {
		got := c.configured(t, "ulimit -n; ulimit -Hn", func(s *specs.Spec) {
			s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 64, Hard: 128}}
		})
		wantEqual(t, got.stdout, "64\n128\n")
	}},
	{"hostname", func(t *testing.T, c *containerd) {
		wantEqual(t, c.configured(t, "hostname", func(s *specs.Spec) { s.Hostname = "named" }).stdout, "named\n")
	}},
	{"groups and umask", func(t *testing.T, c *containerd) {
		got := c.configured(t, "id; umask", func(s *specs.Spec) {
			s.Process.User = specs.User{UID: 1000, GID: 1000, AdditionalGids: []uint32{5, 1234}, Umask: new(uint32(0o27))}
		})
		wantEqual(t, got.stdout, "uid=1000(user) gid=1000(user) groups=5,1234\n0027\n")
	}},
	{"user namespace", func(t *testing.T, c *containerd) {
		got := c.configured(t, "id -u; cat /proc/self/uid_map", func(s *specs.Spec) {
			ids := []specs.LinuxIDMapping{{HostID: 100000, Size: 65536}}
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
			s.Linux.UIDMappings, s.Linux.GIDMappings = ids, ids
		})
		wantEqual(t, strings.Fields(got.stdout), []string{"0", "0", "100000", "65536"})
	}},
	{"sysctl", func(t *testing.T, c *containerd) {
		got := c.configured(t, "cat /proc/sys/net/ipv4/ip_unprivileged_port_start", func(s *specs.Spec) {
			s.Linux.Sysctl = map[string]string{"net.ipv4.ip_unprivileged_port_start": "80"}
		})
		wantEqual(t, got.stdout, "80\n")
	}},
	{"annotations", func(t *testing.T, c *containerd) {
		c.detached(t, "annotated", "exec sleep 1000", "--null-io", "--annotation", "com.example.key=value")
		var state containerState
		got := run(t, exec.Command(c.runtime, "--root", "/run/containerd/runc/default", "state", "annotated"))
		decode(t, got.stdout, &state)
		wantEqual(t, state.Annotations["com.example.key"], "value")
	}},
	{"runtime root", func(t *testing.T, c *containerd) {
		root := filepath.Join(t.TempDir(), "root")
		c.detached(t, "rooted", "exec sleep 1000", "--null-io", "--runc-root", root)
		if _, err := os.Stat(filepath.Join(root, "default", "rooted")); err != nil {
			t.Error(err)
		}
	}},
	{"shared propagation", func(t *testing.T, c *containerd) {
		propagation := `awk '$5 == "/" { print $7 }' /proc/self/mountinfo | cut -d: -f1`
		wantEqual(t, c.inside(t, propagation), "-\n")
		wantEqual(t, c.inside(t, propagation, "--rootfs-propagation", "shared"), "shared\n")
	}},
	{"no pivot", func(t *testing.T, c *containerd) {
		wantEqual(t, c.inside(t, "ls -d /bin/busybox", "--no-pivot"), "/bin/busybox\n")
	}},
	{"fifo folder", func(t *testing.T, c *containerd) {
		dir := t.TempDir()
		p := start(t, c.runWith([]string{"--rm", "--fifo-dir", dir}, "fifo", "sh", "-c", "echo through fifos; exec sleep 1000"))
		p.prints("through fifos\n")
		fifos, err := filepath.Glob(filepath.Join(dir, "*", "fifo-stdout"))
		if err != nil || len(fifos) != 1 {
			t.Errorf("%q, %v", fifos, err)
		}
		wantStatus(t, c.kill("fifo"), 0)
		wantEqual(t, p.wait().code, 137)
	}},
	{"log file", func(t *testing.T, c *containerd) {
		log := filepath.Join(t.TempDir(), "log")
		// It lives on: the shim closes the log where stdout ends, and what stderr
		// has not brought by then is lost, whatever the runtime.
		c.detached(t, "logged", "echo out; echo err >&2; exec sleep 1000", "--log-uri", "file://"+log)
		eventually(t, "both lines are in the log", func() bool {
			lines := strings.Fields(content(t, log))
			slices.Sort(lines)
			return slices.Equal(lines, []string{"err", "out"})
		})
	}},
	{"null io", func(t *testing.T, c *containerd) {
		got := run(t, c.runWith([]string{"--rm", "--null-io"}, "null", "sh", "-c", "echo out; echo err >&2; exit 3"))
		wantEqual(t, got, result{code: 3})
	}},
	{"pid file", func(t *testing.T, c *containerd) {
		pid := c.detached(t, "pidfile", "exec sleep 1000")
		eventually(t, "that process is the container's", func() bool {
			return content(t, fmt.Sprintf("/proc/%d/comm", pid)) == "sleep\n"
		})
	}},
	{"image", func(t *testing.T, c *containerd) {
		name := c.image(t, "ctr", imageConfig{Entrypoint: []string{"/bin/sh", "-c"}, Cmd: []string{livesOn("id -u; pwd; echo $FROM; touch /tmp/f && echo writable")},
			Env: []string{"PATH=/bin", "FROM=image"}, WorkingDir: "/tmp", User: "1000:1000"})
		got, _ := c.logged(t, "image", func(flags ...string) *exec.Cmd {
			flags = append(flags, "--runc-binary", c.runtime, "--mount", "type=tmpfs,src=tmpfs,dst=/tmp,options=mode=1777")
			return c.client(append(append([]string{"run"}, flags...), name, "image")...)
		})
		wantEqual(t, got, "1000\n/tmp\nimage\nwritable\n")
	}},
	{"image in a user namespace", func(t *testing.T, c *containerd) {
		name := c.image(t, "ctr", imageConfig{Env: []string{"PATH=/bin"}})
		got, _ := c.logged(t, "mapped", func(flags ...string) *exec.Cmd {
			flags = append(flags, "--runc-binary", c.runtime, "--uidmap", "0:200000:65536", "--gidmap", "0:200000:65536")
			script := livesOn("stat -c %u /bin; touch /f && stat -c %u /f; awk '{ print $2 }' /proc/self/uid_map")
			return c.client(append(append([]string{"run"}, flags...), name, "mapped", "/bin/sh", "-c", script)...)
		})
		wantEqual(t, got, "0\n0\n200000\n")
	}},
	{"found in PATH as runc", func(t *testing.T, c *containerd) {
		got, _ := c.logged(t, "found", func(flags ...string) *exec.Cmd {
			flags = append(flags, "--env", "PATH=/bin", "--read-only")
			return c.client(append(append([]string{"run"}, flags...), "--rootfs", c.root, "found", "sh", "-c", livesOn("echo found"))...)
		})
		wantEqual(t, got, "found\n")
	}},
	{"an id twice", func(t *testing.T, c *containerd) {
		c.detached(t, "twice", "exec sleep 1000")
		got := run(t, c.runWith([]string{"--detach"}, "twice", "true"))
		if got.code == 0 || !strings.Contains(got.stderr, "already exists") {
			t.Errorf("got %+v", got)
		}
	}},
	{"a program that is a directory", func(t *testing.T, c *containerd) {
		got := run(t, c.runWith([]string{"--rm"}, "directory", "/tmp"))
		if got.code == 0 || !strings.Contains(got.stderr, "is a directory") {
			t.Errorf("got %+v", got)
		}
	}},
	{"a namespace that is not there", func(t *testing.T, c *containerd) {
		got := run(t, c.runWith([]string{"--rm", "--with-ns", "network:/nonsense"}, "nowhere", "true"))
		if got.code == 0 || !strings.Contains(got.stderr, "/nonsense") {
			t.Errorf("got %+v", got)
		}
	}},
	{"a mount source that is not there", func(t *testing.T, c *containerd) {
		got := run(t, c.runWith([]string{"--rm", "--mount", "type=bind,src=/nonsense,dst=/tmp,options=rbind"}, "nowhere", "true"))
		if got.code == 0 || !strings.Contains(got.stderr, "/nonsense") {
			t.Errorf("got %+v", got)
		}
	}},
}
