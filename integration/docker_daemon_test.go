package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// Containers run on without dockerd and containerd, and what became of them
// meanwhile is known to the next.
func TestDockerLiveRestore(t *testing.T) {
	testhost.Long(t)
	for name, signal := range map[string]syscall.Signal{"stopped": unix.SIGTERM, "killed": unix.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t)
			need(t, peers())
			d := startDocker(t, "--live-restore")
			c := d.cli(t)
			dir := t.TempDir()
			lives := c.start("exec sleep 1000", "--network", "none", "--memory", "64m")
			ends := c.start("until test -e /d/end; do sleep 0.1; done; echo ended > /d/ended; exit 7", "--network", "none", "--volume", dir+":/d")
			pid, endsPID := c.hostPID(lives), c.hostPID(ends)
			containerd := d.containerdPID(t)

			if err := d.process.cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			d.process.wait()
			write(c, filepath.Join(dir, "end"), "")
			eventually(t, "one container ends without a daemon", func() bool {
				return exists(filepath.Join(dir, "ended")) && !alive(endsPID)
			})
			if !alive(pid) {
				t.Error("the other ended as well")
			}

			// The next dockerd takes one that is not reaped yet for one that runs.
			eventually(t, "dockerd's containerd is gone", func() bool { return unix.Kill(containerd, 0) == unix.ESRCH })
			d.start(t, "--live-restore")
			t.Cleanup(c.removeAll)
			if got := c.hostPID(lives); got != pid {
				t.Errorf("pid %d, it was %d", got, pid)
			}
			c.want(c.inside(lives, untilItSleeps), "sleep\n")
			if got := c.status(ends); got != 7 {
				t.Errorf("the one that ended: status %d", got)
			}
			if got := c.inside(lives, allocate); got.code != 137 {
				t.Errorf("beyond its limit: %+v", got)
			}
			c.ok("kill", lives)
			if got := c.status(lives); got != 137 {
				t.Errorf("the one that lived: status %d", got)
			}
		})
	}
}

// containerdPID is the containerd that dockerd has started.
func (d *docker) containerdPID(t *testing.T) int {
	t.Helper()
	pid, err := strconv.Atoi(content(t, filepath.Join(d.home, "exec", "containerd", "containerd.pid")))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// A daemon that stops takes its containers along, and starts those again that
// are always to run.
func TestDockerRestartsContainers(t *testing.T) {
	testhost.Long(t)
	leavesNothing(t)
	need(t, peers())
	d := startDocker(t)
	c := d.cli(t)
	always, never := c.start(traps, "--restart", "always"), c.start(traps)
	c.says(always, "ready")
	c.says(never, "ready")
	before := c.hostPID(always)
	interrupt(t, d.process)
	if alive(before) {
		t.Error("a container outlives the daemon")
	}
	d.start(t)
	t.Cleanup(c.removeAll)
	eventually(t, "it runs again", func() bool { return c.field(always, ".State.Running") == "true" })
	c.want(c.inside(always, "echo here"), "here\n")
	if got := c.field(never, `.State.Running}} {{.State.ExitCode`); got != "false 15" {
		t.Errorf("the other one: %s", got)
	}
}

// With ids remapped, root of each container is nobody on the host.
func TestDockerRemapsUsers(t *testing.T) {
	testhost.Long(t)
	leavesNothing(t)
	need(t, peers())
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o711); err != nil { // where dockerd's folder will be
		t.Fatal(err)
	}
	for _, name := range []string{"subuid", "subgid"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("daemon:100000:65536\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		// In the world's mount namespace only.
		if err := unix.Mount(filepath.Join(dir, name), "/etc/"+name, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount("/etc/"+name, 0); err != nil {
				t.Error(err)
			}
		})
	}
	d := startDocker(t, "--userns-remap", "daemon")
	c := d.cli(t)
	t.Cleanup(c.removeAll)
	id := c.start("touch /new; echo ready; exec sleep 1000", "--memory", "64m", "--tmpfs", "/t", "--init")
	c.says(id, "ready")
	pid := c.hostPID(id)
	c.want(c.inside(id, "id -u; tr -s ' ' < /proc/self/uid_map; stat -c %u:%g /new /t"), "0\n 0 100000 65536\n0:0\n0:0\n")
	for _, path := range []string{fmt.Sprintf("/proc/%d", pid), fmt.Sprintf("/proc/%d/root/new", pid)} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if owner := info.Sys().(*syscall.Stat_t); owner.Uid != 100000 || owner.Gid != 100000 {
			t.Errorf("%s is %d:%d's", path, owner.Uid, owner.Gid)
		}
	}
	if namespace(c, pid, "user") == namespace(c, c.pid, "user") {
		t.Error("no user namespace")
	}
	// Of the host's, root inside is not the owner.
	c.want(c.once("cat /d/own 2>&1; touch /d/new 2>&1; true", "--volume", secretFolder(c)+":/d"),
		"cat: can't open '/d/own': Permission denied\ntouch: /d/new: Permission denied\n")
	if got := c.inside(id, allocate); got.code != 137 {
		t.Errorf("beyond its limit: %+v", got)
	}
	c.ok("stop", "--time", "25", id)
	if got := c.status(id); got != 143 {
		t.Errorf("status %d", got)
	}
	c.want(c.once("tr -s ' ' < /proc/self/uid_map", "--userns", "host"), " 0 0 4294967295\n")
}

// secretFolder holds a file that is its owner's alone.
func secretFolder(c cli) string {
	c.Helper()
	dir := c.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "own"), []byte("secret\n"), 0o600); err != nil {
		c.Fatal(err)
	}
	return dir
}
