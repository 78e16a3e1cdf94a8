package integration

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

func TestV2MemoryLimitKills(t *testing.T) {
	r := oursOnV2(t)
	g := v2container(t, r, func(s *specs.Spec) {
		s.Linux.Resources.Memory = &specs.LinuxMemory{Limit: new(int64(48 << 20)), Swap: new(int64(48 << 20))}
	})
	got := run(t, r.command("exec", "c", "dd", "if=/dev/zero", "of=/dev/null", "bs=200M", "count=1"))
	g.tell("memory.max", "memory.swap.max", "memory.peak", "memory.events")
	if got.code != 137 || g.count("memory.events", "oom_kill") != 1 || g.count("memory.events", "max") == 0 {
		t.Errorf("got %+v", got)
	}
	if g.count("memory.max") != 48<<20 || g.count("memory.swap.max") != 0 || g.count("memory.peak") > 48<<20+beyond {
		t.Error("other limits than asked for")
	}
	if got := r.state("c").Status; got != "running" {
		t.Errorf("the rest of the container is %s", got)
	}
}

// Swap is a limit of its own on v2, where the specification has one of both
// together: 32 MiB of memory and as much swap take 48 MiB, and not 80.
func TestV2SwapLimitHolds(t *testing.T) {
	need(t, controllersOnV2(), swap())
	leavesNothing(t)
	r := ours(t)
	g := v2container(t, r, func(s *specs.Spec) {
		s.Linux.Resources.Memory = &specs.LinuxMemory{Limit: new(int64(32 << 20)), Swap: new(int64(64 << 20))}
	})
	take := func(mib int) int {
		return run(t, r.command("exec", "c", "dd", "if=/dev/zero", "of=/dev/null", fmt.Sprintf("bs=%dM", mib), "count=1")).code
	}
	fits, more := take(48), take(80)
	g.tell("memory.max", "memory.swap.max", "memory.peak", "memory.swap.events", "memory.events")
	if g.count("memory.swap.max") != 32<<20 || fits != 0 || more != 137 {
		t.Errorf("48 MiB: status %d, 80 MiB: status %d", fits, more)
	}
}

// swap says that the host has none.
func swap() string {
	list, err := os.ReadFile("/proc/swaps")
	if err != nil || strings.Count(string(list), "\n") < 2 { // the first line is a heading
		return "needs swap"
	}
	return ""
}

func TestV2MemoryGroupKillTakesAll(t *testing.T) {
	r := oursOnV2(t)
	g := v2container(t, r, func(s *specs.Spec) {
		s.Linux.Resources.Unified = map[string]string{"memory.max": "50331648", "memory.swap.max": "0", "memory.oom.group": "1"}
	})
	if got := run(t, r.command("exec", "c", "dd", "if=/dev/zero", "of=/dev/null", "bs=200M", "count=1")); got.code != 137 {
		t.Errorf("got %+v", got)
	}
	r.waitUntil("c", "stopped") // its first process took next to nothing
	g.tell("memory.oom.group", "memory.events")
	if g.count("memory.events", "oom_group_kill") != 1 || g.count("memory.events", "oom_kill") < 2 {
		t.Error("not all processes were killed for want of memory")
	}
}

func TestV2PidsLimitRefusesForks(t *testing.T) {
	r := oursOnV2(t)
	g := v2container(t, r, func(s *specs.Spec) { s.Linux.Resources.Pids = &specs.LinuxPids{Limit: new(int64(12))} })
	got := run(t, r.command("exec", "c", "sh", "-c", "i=0; while test $i -lt 30; do sleep 1000 >/dev/null 2>&1 & i=$((i+1)); done"))
	g.tell("pids.max", "pids.current", "pids.peak", "pids.events")
	if !strings.Contains(got.stderr, "can't fork") || g.count("pids.events", "max") == 0 || g.count("pids.peak") != 12 {
		t.Errorf("got %+v", got)
	}
}

func TestV2CPULimitThrottles(t *testing.T) {
	r := oursOnV2(t)
	g := v2container(t, r, func(s *specs.Spec) {
		s.Linux.Resources.CPU = &specs.LinuxCPU{Quota: new(int64(20_000)), Period: new(uint64(100_000)), Shares: new(uint64(512))}
	})
	begin, before := time.Now(), g.count("cpu.stat", "usage_usec")
	start(t, r.command("exec", "c", "sh", "-c", "while :; do :; done"))
	eventually(t, "twenty times throttled", func() bool { return g.count("cpu.stat", "nr_throttled") >= 20 })
	used := time.Duration(g.count("cpu.stat", "usage_usec")-before) * time.Microsecond
	took := time.Since(begin)
	g.tell("cpu.max", "cpu.weight", "cpu.stat")
	t.Logf("%v of processor time in %v", used, took)
	if used > took*3/10 {
		t.Error("more than the fifth of a processor")
	}
	if g.read("cpu.max") != "20000 100000" {
		t.Errorf("cpu.max %s", g.read("cpu.max"))
	}
}

// Buffered writes too, which v1 does not attribute to who made them.
func TestV2DiskLimitHolds(t *testing.T) {
	need(t, controllersOnV2())
	dir := t.TempDir()
	var device specs.LinuxThrottleDevice
	device.Major, device.Minor = v2disk(t, dir)
	device.Rate = 2 << 20
	leavesNothing(t)
	r := ours(t)
	g := v2container(t, r, func(s *specs.Spec) {
		s.Linux.Resources.BlockIO = &specs.LinuxBlockIO{ThrottleWriteBpsDevice: []specs.LinuxThrottleDevice{device}}
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/tmp", Source: dir, Options: []string{"rbind", "rw"}})
	})
	for _, how := range []string{"oflag=direct", "conv=fsync"} {
		begin := time.Now()
		r.run("exec", "c", "dd", "if=/dev/zero", "of=/tmp/file", "bs=512k", "count=12", how)
		took := time.Since(begin)
		t.Logf("6 MiB with %s at 2 MiB/s took %v", how, took)
		if took < 2*time.Second {
			t.Errorf("%s: too fast", how)
		}
	}
	g.tell("io.max", "io.stat")
	if want := fmt.Sprintf("%d:%d rbps=max wbps=2097152 riops=max wiops=max", device.Major, device.Minor); g.read("io.max") != want {
		t.Errorf("io.max %q, want %q", g.read("io.max"), want)
	}
}

// The devices controller of v2 is a program: what the list leaves out cannot
// be opened, whatever nodes can be made.
func TestV2DevicesAreDenied(t *testing.T) {
	r := oursOnV2(t)
	v2container(t, r, func(s *specs.Spec) {
		for _, kind := range []string{"b", "c"} { // as Docker does
			s.Linux.Resources.Devices = append(s.Linux.Resources.Devices, specs.LinuxDeviceCgroup{Allow: true, Type: kind, Access: "m"})
		}
	})
	for device, allowed := range map[string]bool{"c 1 5": true, "c 1 11": false, "c 10 229": false, "b 7 0": false} {
		got := run(t, r.command("exec", "c", "sh", "-c", "mknod /dev/node "+device+" && head -c 1 /dev/node >/dev/null; s=$?; rm /dev/node; exit $s"))
		t.Logf("%s: status %d, %s", device, got.code, strings.TrimSpace(got.stderr))
		if (got.code == 0) != allowed || !allowed && !strings.Contains(got.stderr, "Operation not permitted") {
			t.Errorf("%s: %+v", device, got)
		}
	}
}
