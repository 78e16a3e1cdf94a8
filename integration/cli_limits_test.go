package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// limitCases exceed limits, and look at what the kernel does.
var limitCases = []cliCase{
	{"memory exceeded is told as OOMKilled", "", func(c cli) {
		for _, limit := range []struct {
			memory, killed string
			status         int
		}{{"256m", "false", 0}, {"32m", "true", 137}} {
			// Docker does not tell it where it learns of the end before it learns of
			// the reason: each comes to the shim by a way of its own.
			eventually(c, "OOMKilled is "+limit.killed, func() bool {
				id := c.start(allocate, "--memory", limit.memory)
				if got := c.status(id); got != limit.status {
					c.Errorf("%s: status %d, want %d", limit.memory, got, limit.status)
				}
				// podman 4.3 looks for conmon's note in another folder than conmon's
				return c.name == "podman" || c.field(id, ".State.OOMKilled") == limit.killed
			})
		}
	}},
	{"memory exceeded by a child spares PID 1", "", func(c cli) {
		c.want(c.once("dd if=/dev/zero of=/dev/null bs=100M count=1 2>/dev/null; echo $?", "--memory", "32m"), "137\n")
	}},
	{"without OOM killer it waits to be killed", "", func(c cli) {
		// Memory that a system call asks for would be refused it.
		id := c.start("x=x; while :; do x=$x$x; done", "--memory", "32m", "--oom-kill-disable")
		eventually(c, "it is out of memory", func() bool {
			return strings.Contains(c.inGroup(id, "memory", "memory.oom_control"), "under_oom 1")
		})
		c.ok("kill", id)
		if got := c.status(id); got != 137 {
			c.Errorf("status %d", got)
		}
	}},
	{"forks beyond the limit of pids are refused", "", func(c cli) {
		if got := c.once(fork30, "--pids-limit", "20"); got.code == 0 || !strings.Contains(got.stderr, "can't fork") {
			c.Errorf("got %+v", got)
		}
		c.want(c.once(fork30, "--pids-limit", "100"), "forked\n")
	}},
	{"CPU quota throttles", "", func(c cli) {
		id := c.start(burn, "--cpus", "0.2")
		c.throttled(id)
	}},
	{"block device is written at the rate given", "", func(c cli) {
		device := blockDevice(c)
		id := c.start("sleep 1000", "--device-write-bps", device+":1mb", "--volume", "/v")
		began := time.Now()
		c.want(c.inside(id, "dd if=/dev/zero of=/v/f bs=1M count=3 oflag=direct"), "")
		// The kernel lets a first slice of a tenth of a second through.
		if took := time.Since(began); took < 1500*time.Millisecond {
			c.Errorf("3 MB written in %v at 1 MB/s", took)
		}
	}},
	{"update of limits is in force", "", func(c cli) {
		id := c.start(burn, "--memory", "256m")
		c.want(c.inside(id, allocate), "")
		if got := c.inGroup(id, "cpu", "cpu.stat"); !strings.Contains(got, "nr_throttled 0") {
			c.Errorf("throttled before the update: %s", got)
		}
		c.ok("update", "--memory", "32m", "--memory-swap", "32m", "--cpus", "0.2", "--cpuset-cpus", "0", id)
		if got := c.inside(id, allocate); got.code != 137 {
			c.Errorf("allocates: %+v", got)
		}
		c.throttled(id)
		c.want(c.inside(id, "nproc"), "1\n")
	}},
	{"update of the limit of pids is in force", "docker", func(c cli) {
		id := c.start("sleep 1000")
		c.want(c.inside(id, fork30), "forked\n")
		c.ok("update", "--pids-limit", "20", id)
		if got := c.inside(id, fork30); !strings.Contains(got.stderr, "can't fork") {
			c.Errorf("forks: %+v", got)
		}
	}},
	{"limits hold for exec and outlive a restart", "", func(c cli) {
		id := c.start("sleep 1000", "--memory", "32m", "--pids-limit", "20")
		c.ok("restart", "--time", "0", id)
		if got := c.inside(id, allocate); got.code != 137 {
			c.Errorf("allocates: %+v", got)
		}
		if got := c.inside(id, fork30); !strings.Contains(got.stderr, "can't fork") {
			c.Errorf("forks: %+v", got)
		}
	}},
	{"stats count memory, tasks and time", "", func(c cli) {
		id := c.start("dd if=/dev/zero of=/dev/shm/f bs=1M count=20 2>/dev/null; sleep 1000 & sleep 1000 & echo ready; wait", "--memory", "64m")
		c.says(id, "ready")
		var usage, limit float64
		var pids int
		// Docker's client prints no numbers if it has to wait too long for them.
		eventually(c, "64 MB, 20 of them in use, and 3 tasks", func() bool {
			got := c.ok("stats", "--no-stream", "--format", "{{.MemUsage}} {{.PIDs}}", id)
			got = strings.ReplaceAll(strings.ReplaceAll(got, "MiB", ""), "MB", "")
			n, _ := fmt.Sscanf(got, "%f / %f %d", &usage, &limit, &pids)
			holds := n == 3 && usage >= 20 && usage <= limit && limit >= 64 && limit <= 68 && pids == 3
			if !holds {
				c.Logf("stats: %s", got)
			}
			return holds
		})
	}},
}

const (
	// allocate takes 100 MB.
	allocate = "exec dd if=/dev/zero of=/dev/null bs=100M count=1"
	// fork30 has 30 processes at a time.
	fork30 = "for i in $(seq 30); do sleep 1000 & done; echo forked; kill $(jobs -p); wait"
	// burn uses a whole CPU, or all there is.
	burn = "while :; do :; done"
)

// throttled waits until the kernel has kept the container from running because
// of its quota.
func (c cli) throttled(id string) {
	c.Helper()
	eventually(c, "throttled", func() bool {
		stat := c.inGroup(id, "cpu", "cpu.stat")
		return strings.Contains(stat, "nr_throttled ") && !strings.Contains(stat, "nr_throttled 0\n")
	})
}

// inGroup reads a file of the container's cgroup of a v1 controller.
func (c cli) inGroup(id, controller, file string) string {
	c.Helper()
	hierarchies, err := cgroupHierarchies()
	if err != nil {
		c.Fatal(err)
	}
	groups := content(c, fmt.Sprintf("/proc/%d/cgroup", c.hostPID(id)))
	for _, h := range hierarchies {
		if !slices.Contains(strings.Split(h.options, ","), controller) {
			continue
		}
		for line := range strings.Lines(groups) {
			// hierarchy-ID:controller-list:path, cgroups(7)
			if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 && f[1] == h.options {
				return content(c, filepath.Join(h.mountPoint, f[2], file))
			}
		}
	}
	c.Fatalf("%s is in no group of %s:\n%s", id, controller, groups)
	return ""
}

// blockDevice is the device of the file system that engines write to here.
func blockDevice(c cli) string {
	c.Helper()
	info, err := os.Stat(c.TempDir())
	if err != nil {
		c.Fatal(err)
	}
	device := info.Sys().(*syscall.Stat_t).Dev
	number := fmt.Sprintf("%d:%d", device>>8&0xfff, device&0xff)
	target, err := os.Readlink("/sys/dev/block/" + number)
	if err != nil {
		c.Fatalf("temporary files are on no block device: %v", err)
	}
	return "/dev/" + filepath.Base(target)
}
