package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// resources limits a container.
func resources(r *criapi.LinuxContainerResources) func(*criapi.ContainerConfig) {
	return func(config *criapi.ContainerConfig) { config.Linux.Resources = r }
}

// sleeper is a container that runs until it is killed.
func (p *pod) sleeper(t *testing.T, changes ...func(*criapi.ContainerConfig)) *podContainer {
	t.Helper()
	c := p.run(t, "sleeper", "exec sleep 1000", changes...)
	// Before it executes the program, PID 1 is the runtime's, which has a handler of SIGTERM.
	eventually(t, "it sleeps", func() bool { return content(t, fmt.Sprintf("/proc/%d/comm", c.pid(t))) == "sleep\n" })
	return c
}

// untilItReads is a script that says again and again that it is there until it has
// read a line: of what it prints, an attachment has only what comes when it is made,
// and input may come before.
const untilItReads = "(while :; do echo here; usleep 20000; done) & read line; kill $!; wait"

func (c *podContainer) stop(t *testing.T, timeout time.Duration) {
	t.Helper()
	ask(t, c.api.StopContainer, &criapi.StopContainerRequest{ContainerId: c.id, Timeout: int64(timeout / time.Second)})
}

var criContainerCases = []criCase{
	{"life", func(t *testing.T, c *cri) {
		ctr := c.pod(t, "life").create(t, "c", "echo up; exec sleep 1000")
		wantEqual(t, ctr.status(t).State, criapi.ContainerState_CONTAINER_CREATED)
		ctr.start(t)
		wantEqual(t, ctr.status(t).State, criapi.ContainerState_CONTAINER_RUNNING)
		refuses(t, "CONTAINER_RUNNING", c.api.StartContainer, &criapi.StartContainerRequest{ContainerId: ctr.id})
		ctr.logs(t, "up\n")
		ctr.stop(t, 0)
		wantEqual(t, ctr.status(t).State, criapi.ContainerState_CONTAINER_EXITED)
		ask(t, c.api.RemoveContainer, &criapi.RemoveContainerRequest{ContainerId: ctr.id})
		refuses(t, "not found", c.api.ContainerStatus, &criapi.ContainerStatusRequest{ContainerId: ctr.id})
		ask(t, c.api.RemoveContainer, &criapi.RemoveContainerRequest{ContainerId: ctr.id}) // no error, cri-api api.proto
	}},
	{"statuses and reasons", func(t *testing.T, c *cri) {
		p := c.pod(t, "statuses")
		for status, reason := range map[int32]string{0: "Completed", 7: "Error", 255: "Error"} {
			s := p.run(t, "c"+strconv.Itoa(int(status)), "exit "+strconv.Itoa(int(status))).exited(t)
			wantEqual(t, s.ExitCode, status)
			wantEqual(t, s.Reason, reason)
			if s.StartedAt < s.CreatedAt || s.FinishedAt < s.CreatedAt {
				t.Errorf("created %d, started %d, finished %d", s.CreatedAt, s.StartedAt, s.FinishedAt)
			}
		}
	}},
	{"killed by a signal", func(t *testing.T, c *cri) {
		ctr := c.pod(t, "signal").sleeper(t)
		if err := unix.Kill(ctr.pid(t), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		wantEqual(t, ctr.exited(t).ExitCode, 137)
	}},
	{"logs of both streams", func(t *testing.T, c *cri) {
		ctr := c.pod(t, "logs").run(t, "c", "echo out; echo err >&2; head -c 20000 /dev/zero | tr '\\0' x; echo; exec sleep 1000")
		var out string
		eventually(t, "both are in the log", func() bool {
			out = ctr.logged(t, "stdout")
			return strings.Count(out, "x") == 20000 && ctr.logged(t, "stderr") == "err\n"
		})
		if !strings.HasPrefix(out, "out\n") {
			t.Errorf("got %.100q", out)
		}
	}},
	{"log is opened again", func(t *testing.T, c *cri) {
		ctr := c.pod(t, "reopen").run(t, "c", "echo before; while [ ! -e /go ]; do usleep 10000; done; echo after; exec sleep 1000")
		ctr.logs(t, "before\n")
		if err := os.Rename(ctr.log, ctr.log+".1"); err != nil {
			t.Fatal(err)
		}
		ask(t, c.api.ReopenContainerLog, &criapi.ReopenContainerLogRequest{ContainerId: ctr.id})
		wantEqual(t, ctr.execute(t, "touch /go").code, 0)
		ctr.logs(t, "after\n")
	}},
	{"environment, directory and arguments", func(t *testing.T, c *cri) {
		got := c.pod(t, "arguments").prints(t, "c", "", func(config *criapi.ContainerConfig) {
			config.Command = []string{"sh", "-c"}
			config.Args = []string{livesOn(`pwd; echo "$FROM $A"; echo "$1"`), "sh", "an argument"}
			config.WorkingDir = "/tmp"
			config.Envs = []*criapi.KeyValue{{Key: "A", Value: "b c"}}
		})
		wantEqual(t, got, "/tmp\nimage b c\nan argument\n")
	}},
	{"working directory is made", func(t *testing.T, c *cri) {
		got := c.pod(t, "made").prints(t, "c", "pwd", func(config *criapi.ContainerConfig) { config.WorkingDir = "/new/place" })
		wantEqual(t, got, "/new/place\n")
	}},
	{"command is not found", func(t *testing.T, c *cri) {
		ctr := c.pod(t, "notfound").create(t, "c", "", func(config *criapi.ContainerConfig) { config.Command = []string{"nonsense"} })
		refuses(t, "executable file not found in $PATH", c.api.StartContainer, &criapi.StartContainerRequest{ContainerId: ctr.id})
		s := ctr.status(t)
		wantEqual(t, s.State, criapi.ContainerState_CONTAINER_EXITED)
		wantEqual(t, s.ExitCode, 128)
		wantEqual(t, s.Reason, "StartError")
	}},
	{"out of memory", func(t *testing.T, c *cri) {
		// Memory is short only when it has started, for the shim is told of it from then
		// on, and first where it lives on: the shim forgets it when the cgroup is removed.
		const dd = "dd if=/dev/zero of=/dev/null bs=200M count=1"
		dir := t.TempDir()
		ctr := c.pod(t, "oom").run(t, "c", untilFile("started")+dd+"; "+untilFile("seen")+"exec "+dd, folder(dir), resources(&criapi.LinuxContainerResources{MemoryLimitInBytes: 32 << 20}))
		writeConfig(t, filepath.Join(dir, "started"), "")
		eventually(t, "the reason is known", func() bool { return ctr.status(t).Reason == "OOMKilled" })
		writeConfig(t, filepath.Join(dir, "seen"), "")
		s := ctr.exited(t)
		wantEqual(t, s.ExitCode, 137)
		wantEqual(t, s.Reason, "OOMKilled")
	}},
	{"cpu limit is in force", func(t *testing.T, c *cri) {
		ctr := c.pod(t, "cpu").run(t, "c", "while :; do :; done", resources(&criapi.LinuxContainerResources{CpuPeriod: 50000, CpuQuota: 10000, CpuShares: 256}))
		group := groupByController(t, ctr.pid(t), "cpu")
		wantEqual(t, content(t, filepath.Join(group, "cpu.cfs_period_us")), "50000\n")
		wantEqual(t, content(t, filepath.Join(group, "cpu.cfs_quota_us")), "10000\n")
		wantEqual(t, content(t, filepath.Join(group, "cpu.shares")), "256\n")
		eventually(t, "it is throttled", func() bool {
			return number(t, filepath.Join(group, "cpu.stat"), "nr_throttled") > 2
		})
	}},
	{"cpuset", func(t *testing.T, c *cri) {
		got := c.pod(t, "cpuset").prints(t, "c", "grep Cpus_allowed_list /proc/self/status; nproc", resources(&criapi.LinuxContainerResources{CpusetCpus: "0", CpusetMems: "0"}))
		wantEqual(t, got, "Cpus_allowed_list:\t0\n1\n")
	}},
	{"oom score", func(t *testing.T, c *cri) {
		got := c.pod(t, "score").prints(t, "c", "cat /proc/self/oom_score_adj", resources(&criapi.LinuxContainerResources{OomScoreAdj: 700}))
		wantEqual(t, got, "700\n")
	}},
	{"resources are updated", func(t *testing.T, c *cri) {
		ctr := c.pod(t, "update").sleeper(t, resources(&criapi.LinuxContainerResources{MemoryLimitInBytes: 64 << 20, CpuPeriod: 100000, CpuQuota: 50000}))
		ask(t, c.api.UpdateContainerResources, &criapi.UpdateContainerResourcesRequest{ContainerId: ctr.id, Linux: &criapi.LinuxContainerResources{
			MemoryLimitInBytes: 48 << 20, CpuPeriod: 100000, CpuQuota: 20000, CpuShares: 300,
		}})
		pid := ctr.pid(t)
		wantEqual(t, content(t, filepath.Join(groupByController(t, pid, "memory"), "memory.limit_in_bytes")), strconv.Itoa(48<<20)+"\n")
		wantEqual(t, content(t, filepath.Join(groupByController(t, pid, "cpu"), "cpu.cfs_quota_us")), "20000\n")
		wantEqual(t, content(t, filepath.Join(groupByController(t, pid, "cpu"), "cpu.shares")), "300\n")
		if got := ctr.execute(t, "dd if=/dev/zero of=/dev/null bs=60M count=1"); got.code != 137 {
			t.Errorf("more than the new limit: %+v", got)
		}
	}},
	{"update that cannot be", func(t *testing.T, c *cri) {
		ctr := c.pod(t, "noupdate").sleeper(t)
		refuses(t, "cpuset", c.api.UpdateContainerResources, &criapi.UpdateContainerResourcesRequest{ContainerId: ctr.id, Linux: &criapi.LinuxContainerResources{CpusetCpus: "4095"}})
		wantEqual(t, ctr.execute(t, "echo alive").stdout, "alive\n")
	}},
	{"stats", func(t *testing.T, c *cri) {
		ctr := c.pod(t, "stats").run(t, "c", "dd if=/dev/zero of=/f bs=1M count=3 2>/dev/null; exec sleep 1000")
		eventually(t, "the stats show what it used", func() bool {
			s := ask(t, c.api.ContainerStats, &criapi.ContainerStatsRequest{ContainerId: ctr.id}).Stats
			return s.Cpu.GetUsageCoreNanoSeconds().GetValue() > 0 && s.Memory.GetWorkingSetBytes().GetValue() > 0 &&
				s.WritableLayer.GetUsedBytes().GetValue() >= 3<<20
		})
		all := ask(t, c.api.ListContainerStats, &criapi.ListContainerStatsRequest{}).Stats
		wantEqual(t, len(all), 1)
	}},
	{"exec", func(t *testing.T, c *cri) {
		ctr := c.pod(t, "exec").sleeper(t)
		wantEqual(t, ctr.execute(t, "echo out; echo err >&2; "+untilItSleeps+"; exit 9"), result{9, "out\nsleep\n", "err\n"})
		refuses(t, "executable file not found in $PATH", c.api.ExecSync, &criapi.ExecSyncRequest{ContainerId: ctr.id, Cmd: []string{"nonsense"}})
	}},
	{"exec ends at its timeout", func(t *testing.T, c *cri) {
		ctr := c.pod(t, "timeout").sleeper(t)
		refuses(t, "timeout 1s exceeded", c.api.ExecSync, &criapi.ExecSyncRequest{ContainerId: ctr.id, Cmd: []string{"sleep", "4321"}, Timeout: 1})
		wantEqual(t, ctr.execute(t, "ps | grep -c 'sleep 432[1]'").stdout, "0\n")
	}},
	{"exec in a stopped container", func(t *testing.T, c *cri) {
		ctr := c.pod(t, "over").run(t, "c", "true")
		ctr.exited(t)
		refuses(t, "CONTAINER_EXITED", c.api.ExecSync, &criapi.ExecSyncRequest{ContainerId: ctr.id, Cmd: []string{"true"}})
	}},
	{"execs in parallel", func(t *testing.T, c *cri) {
		ctr := c.pod(t, "execs").sleeper(t)
		t.Run("all", func(t *testing.T) {
			for i := range 10 {
				t.Run(strconv.Itoa(i), func(t *testing.T) {
					t.Parallel()
					wantEqual(t, ctr.execute(t, "echo "+strconv.Itoa(i)+"; exit "+strconv.Itoa(i)), result{code: i, stdout: strconv.Itoa(i) + "\n"})
				})
			}
		})
	}},
	{"exec stream", func(t *testing.T, c *cri) {
		ctr := c.pod(t, "stream").sleeper(t)
		s := openStream(t, ask(t, c.api.Exec, &criapi.ExecRequest{ContainerId: ctr.id, Cmd: []string{"sh", "-c", "read line; echo \"got $line\"; echo err >&2; exit 5"}, Stdin: true, Stdout: true, Stderr: true}).Url)
		s.send(t, channelStdin, "from outside\n")
		s.shows(t, channelStdout, "got from outside\n")
		s.shows(t, channelStderr, "err\n")
		if status := s.ends(t); !strings.Contains(status, `"message":"5"`) {
			t.Errorf("status %s", status)
		}
	}},
	{"exec on a terminal", func(t *testing.T, c *cri) {
		ctr := c.pod(t, "terminal").sleeper(t)
		s := openStream(t, ask(t, c.api.Exec, &criapi.ExecRequest{ContainerId: ctr.id, Cmd: []string{"sh", "-c", "tty; until stty size | grep 40.132; do usleep 10000; done; read line; echo \"got $line\""}, Stdin: true, Stdout: true, Tty: true}).Url)
		s.shows(t, channelStdout, "/dev/pts/0")
		s.send(t, channelResize, `{"Width": 132, "Height": 40}`)
		s.shows(t, channelStdout, "40 132")
		s.send(t, channelStdin, "typed\n")
		s.shows(t, channelStdout, "got typed")
		if status := s.ends(t); !strings.Contains(status, `"status":"Success"`) {
			t.Errorf("status %s", status)
		}
	}},
	{"attach", func(t *testing.T, c *cri) {
		ctr := c.pod(t, "attach").run(t, "c", untilItReads+"; echo \"got $line\"; read line", func(config *criapi.ContainerConfig) { config.Stdin = true })
		s := openStream(t, ask(t, c.api.Attach, &criapi.AttachRequest{ContainerId: ctr.id, Stdin: true, Stdout: true, Stderr: true}).Url)
		s.shows(t, channelStdout, "here\n")
		s.send(t, channelStdin, "from outside\n")
		s.shows(t, channelStdout, "got from outside\n")
		eventually(t, "it is in the log", func() bool { return strings.HasSuffix(ctr.logged(t, "stdout"), "here\ngot from outside\n") })
		s.send(t, channelStdin, "end\n")
		wantEqual(t, ctr.exited(t).ExitCode, 0)
	}},
	{"attach to a terminal", func(t *testing.T, c *cri) {
		ctr := c.pod(t, "attachtty").run(t, "c", "tty; read line; echo \"got $line\"; read line; exit 4", func(config *criapi.ContainerConfig) { config.Stdin, config.Tty = true, true })
		s := openStream(t, ask(t, c.api.Attach, &criapi.AttachRequest{ContainerId: ctr.id, Stdin: true, Stdout: true, Tty: true}).Url)
		s.send(t, channelStdin, "typed\n")
		eventually(t, "both are in the log", func() bool {
			log := ctr.logged(t, "stdout")
			return strings.Contains(log, "/dev/pts/0") && strings.Contains(log, "got typed")
		})
		s.send(t, channelStdin, "end\n")
		wantEqual(t, ctr.exited(t).ExitCode, 4)
	}},
	{"stop by the signal", func(t *testing.T, c *cri) {
		ctr := c.pod(t, "term").run(t, "c", "trap 'exit 3' TERM; echo up; while :; do usleep 10000; done")
		ctr.logs(t, "up\n")
		ctr.stop(t, patience)
		wantEqual(t, ctr.status(t).ExitCode, 3)
	}},
	{"stop after the timeout", func(t *testing.T, c *cri) {
		ctr := c.pod(t, "deaf").sleeper(t) // PID 1 without a handler
		ctr.stop(t, time.Second)
		wantEqual(t, ctr.status(t).ExitCode, 137)
	}},
	{"stop takes the children along", func(t *testing.T, c *cri) {
		p := c.pod(t, "children", podPID)
		ctr := p.run(t, "c", "sleep 4321 & exec sleep 4321", sharedPID)
		group := groupByController(t, ctr.pid(t), "pids")
		eventually(t, "both run", func() bool { return strings.Count(content(t, filepath.Join(group, "cgroup.procs")), "\n") == 2 })
		ctr.stop(t, 0)
		eventually(t, "its cgroup is gone", func() bool { _, err := os.Stat(group); return os.IsNotExist(err) })
		wantEqual(t, p.status(t).State, criapi.PodSandboxState_SANDBOX_READY)
	}},
	{"removal of a running container", func(t *testing.T, c *cri) {
		ctr := c.pod(t, "forced").sleeper(t)
		pid := ctr.pid(t)
		ask(t, c.api.RemoveContainer, &criapi.RemoveContainerRequest{ContainerId: ctr.id})
		if alive(pid) {
			t.Error("still alive")
		}
	}},
	{"second attempt", func(t *testing.T, c *cri) {
		p := c.pod(t, "attempts")
		wantEqual(t, p.run(t, "c", "touch /made; exit 1").exited(t).ExitCode, 1)
		again := p.run(t, "c", "test ! -e /made", func(config *criapi.ContainerConfig) { config.Metadata.Attempt = 1 })
		wantEqual(t, again.exited(t).ExitCode, 0)
		list := ask(t, c.api.ListContainers, &criapi.ListContainersRequest{Filter: &criapi.ContainerFilter{PodSandboxId: p.id}}).Containers
		wantEqual(t, len(list), 2)
	}},
	{"mounts", func(t *testing.T, c *cri) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "f"), []byte("outside\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		got := c.pod(t, "mounts").prints(t, "c", "cat /rw/f /ro/f; echo inside > /rw/f; touch /ro/f2 || true; cat /ro/f; touch /single || true", func(config *criapi.ContainerConfig) {
			config.Mounts = []*criapi.Mount{
				{HostPath: dir, ContainerPath: "/rw"},
				{HostPath: dir, ContainerPath: "/ro", Readonly: true},
				{HostPath: filepath.Join(dir, "f"), ContainerPath: "/single", Readonly: true},
			}
		})
		wantEqual(t, got, "outside\noutside\ntouch: /ro/f2: Read-only file system\ninside\ntouch: /single: Read-only file system\n")
		wantEqual(t, content(t, filepath.Join(dir, "f")), "inside\n")
	}},
	{"mount propagation", func(t *testing.T, c *cri) {
		// A shared mount of the host's, as a kubelet's volumes are.
		dir := t.TempDir()
		t.Cleanup(func() {
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
			t.Fatal(err)
		}
		p := c.pod(t, "propagation")
		at := func(propagation criapi.MountPropagation) func(*criapi.ContainerConfig) {
			return func(config *criapi.ContainerConfig) {
				config.Mounts = []*criapi.Mount{{HostPath: dir, ContainerPath: "/vol", Propagation: propagation}}
			}
		}
		private := p.run(t, "private", "exec sleep 1000", at(criapi.MountPropagation_PROPAGATION_PRIVATE))
		slave := p.run(t, "slave", "exec sleep 1000", at(criapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER))
		shared := p.run(t, "shared", "exec sleep 1000", at(criapi.MountPropagation_PROPAGATION_BIDIRECTIONAL))
		if err := os.Mkdir(filepath.Join(dir, "later"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", filepath.Join(dir, "later"), "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		for _, see := range []struct {
			ctr  *podContainer
			want string
		}{{private, "0\n"}, {slave, "1\n"}, {shared, "1\n"}} {
			wantEqual(t, see.ctr.execute(t, "grep -c ' /vol/later ' /proc/self/mountinfo").stdout, see.want)
		}
		if err := unix.Unmount(filepath.Join(dir, "later"), 0); err != nil {
			t.Error(err)
		}
		for _, see := range []*podContainer{slave, shared} {
			wantEqual(t, see.execute(t, "grep -c ' /vol/later ' /proc/self/mountinfo").stdout, "0\n")
		}
	}},
	{"devices", func(t *testing.T, c *cri) {
		p := c.pod(t, "devices")
		open := "stat -c %t:%T /dev/x; exec 3</dev/x && echo open"
		got := p.prints(t, "c", open, func(config *criapi.ContainerConfig) {
			config.Devices = []*criapi.Device{{HostPath: "/dev/loop-control", ContainerPath: "/dev/x", Permissions: "rwm"}}
		})
		wantEqual(t, got, "a:ed\nopen\n")
		got = p.prints(t, "d", "mknod /dev/x c 10 237; (exec 3</dev/x) || true")
		if !strings.Contains(got, "Operation not permitted") {
			t.Errorf("a device that was not given: %q", got)
		}
	}},
	{"standard input once", func(t *testing.T, c *cri) {
		dir := t.TempDir()
		ctr := c.pod(t, "once").run(t, "c", untilItReads+"; echo \"got $line\"; cat; echo over; "+untilFile("seen"), folder(dir), func(config *criapi.ContainerConfig) { config.Stdin, config.StdinOnce = true, true })
		s := openStream(t, ask(t, c.api.Attach, &criapi.AttachRequest{ContainerId: ctr.id, Stdin: true, Stdout: true}).Url)
		s.shows(t, channelStdout, "here\n")
		s.send(t, channelStdin, "first\n")
		s.shows(t, channelStdout, "got first\n")
		s.send(t, channelStdin, "line\n")
		s.shows(t, channelStdout, "line\n")
		s.conn.Close()
		eventually(t, "the end is in the log", func() bool { return strings.HasSuffix(ctr.logged(t, "stdout"), "here\ngot first\nline\nover\n") })
		writeConfig(t, filepath.Join(dir, "seen"), "")
		wantEqual(t, ctr.exited(t).ExitCode, 0)
	}},
}
