package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// sharingCases have containers share namespaces with each other and the host.
var sharingCases = []cliCase{
	{"namespaces are its own", "", func(c cli) {
		id := c.start("sleep 1000", "--cgroupns", "private")
		for _, kind := range []string{"cgroup", "ipc", "mnt", "net", "pid", "uts"} {
			own, host := namespace(c, c.hostPID(id), kind), namespace(c, c.pid, kind)
			if own == host {
				c.Errorf("%s is the host's: %s", kind, host)
			}
			// An exec joins what the container has.
			c.want(c.inside(id, "readlink /proc/self/ns/"+kind), own+"\n")
		}
	}},
	{"network namespace is the host's", "", func(c cli) { c.hostNamespace("net", "--network") }},
	{"ipc namespace is the host's", "", func(c cli) { c.hostNamespace("ipc", "--ipc") }},
	{"uts namespace is the host's", "", func(c cli) { c.hostNamespace("uts", "--uts") }},
	{"cgroup namespace is the host's", "", func(c cli) { c.hostNamespace("cgroup", "--cgroupns") }},
	{"pid namespace is the host's", "", func(c cli) {
		c.hostNamespace("pid", "--pid")
		// Its end is the end of all its processes though, of exec's as well.
		id := c.start("sleep 1001 & echo ready; wait", "--pid", "host")
		c.says(id, "ready")
		c.ok("exec", "--detach", id, "sleep", "1002")
		eventually(c, "both processes run", func() bool { return runs(c, "sleep 1001") && runs(c, "sleep 1002") })
		c.ok("kill", id)
		eventually(c, "both have ended", func() bool { return !runs(c, "sleep 1001") && !runs(c, "sleep 1002") })
	}},
	{"network shared with a container", "", func(c cli) {
		server := c.start("echo hello > /index.html; echo ready; exec httpd -f -p 127.0.0.1:80 -h /")
		c.says(server, "ready")
		c.want(c.once(fetch("127.0.0.1"), "--network", "container:"+server), "hello\n")
	}},
	{"pids shared with a container", "", func(c cli) {
		id := c.start("trap 'exit 5' TERM; echo ready; while :; do sleep 0.1; done")
		c.says(id, "ready")
		c.want(c.once("kill 1", "--pid", "container:"+id), "")
		if got := c.status(id); got != 5 {
			c.Errorf("status %d", got)
		}
	}},
	{"shared memory shared with a container", "", func(c cli) {
		id := c.start("echo hello > /dev/shm/f; echo ready; exec sleep 1000", "--ipc", "shareable")
		c.says(id, "ready")
		c.want(c.once("cat /dev/shm/f; readlink /proc/self/ns/ipc", "--ipc", "container:"+id),
			"hello\n"+namespace(c, c.hostPID(id), "ipc")+"\n")
	}},
	{"no shared memory", "", func(c cli) {
		c.want(c.once("grep -c /dev/shm /proc/mounts; true", "--ipc", "none"), "0\n")
	}},
	{"cgroup below the parent given", "", func(c cli) {
		c.Cleanup(func() { removeGround(c.T, "parent") })
		c.want(c.once("cut -d: -f3 /proc/self/cgroup | cut -d/ -f2 | sort -u", "--cgroup-parent", "/parent", "--cgroupns", "host"), "parent\n")
	}},
	{"mounts of the host arrive in a slave", "", func(c cli) {
		dir := sharedFolder(c)
		slave := c.start("sleep 1000", "--volume", dir+":/d:rslave")
		private := c.start("sleep 1000", "--volume", dir+":/d:rprivate")
		mountTmpfs(c, filepath.Join(dir, "later"))
		c.want(c.inside(slave, "grep -c ' /d/later ' /proc/mounts"), "1\n")
		if got := c.inside(private, "grep -c ' /d/later ' /proc/mounts"); got.stdout != "0\n" {
			c.Errorf("private: %+v", got)
		}
	}},
	{"mounts in a shared folder arrive at the host", "", func(c cli) {
		dir := sharedFolder(c)
		id := c.start("mkdir /d/new && mount -t tmpfs inside /d/new && echo ready; exec sleep 1000",
			"--volume", dir+":/d:rshared", "--cap-add", "SYS_ADMIN")
		c.says(id, "ready")
		if mounts := content(c, "/proc/self/mountinfo"); !strings.Contains(mounts, " "+dir+"/new ") {
			c.Errorf("no mount on %s/new:\n%s", dir, mounts)
		}
		c.want(c.inside(id, "umount /d/new"), "")
	}},
}

// hostNamespace starts a container in the engine's namespace of a kind.
func (c cli) hostNamespace(kind, flag string) {
	c.Helper()
	c.want(c.once("readlink /proc/self/ns/"+kind, flag, "host"), namespace(c, c.pid, kind)+"\n")
}

// runs says whether a process of just these arguments is in the world.
func runs(t testing.TB, args string) bool {
	t.Helper()
	for process := range processes(t) {
		if strings.HasSuffix(process, fmt.Sprintf(": %q", args+" ")) {
			return true
		}
	}
	return false
}

func namespace(c cli, pid int, kind string) string {
	c.Helper()
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
	if err != nil {
		c.Fatal(err)
	}
	return link
}

// sharedFolder is a mount of a new folder on itself whose propagation is
// shared.
func sharedFolder(c cli) string {
	c.Helper()
	dir := c.TempDir()
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { unmount(c, dir) })
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		c.Fatal(err)
	}
	return dir
}

func mountTmpfs(c cli, dir string) {
	c.Helper()
	if err := os.Mkdir(dir, 0o755); err != nil {
		c.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		c.Fatal(err)
	}
}

// unmount takes what is mounted below along.
func unmount(c cli, dir string) {
	c.Helper()
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		c.Error(err)
	}
}
