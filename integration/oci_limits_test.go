package integration

import (
	"path/filepath"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

func limited(change func(*specs.LinuxResources)) func(*testing.T, *specs.Spec) {
	return func(_ *testing.T, s *specs.Spec) { change(s.Linux.Resources) }
}

// asRuncs is the result of a row that depends on the controllers of the host.
var asRuncs = result{code: -1}

// limitFields are read where the container sees its own cgroup. What is wanted
// is what cgroup v1 shows; on v2 it is what runc shows.
var limitFields = []field{
	{"pids", limited(func(l *specs.LinuxResources) { l.Pids = &specs.LinuxPids{Limit: new(int64(64))} }), "cat pids/pids.max", result{stdout: "64\n"}},
	{"pids zero", limited(func(l *specs.LinuxResources) { l.Pids = &specs.LinuxPids{Limit: new(int64(0))} }), "cat pids/pids.max", result{stdout: "1\n"}},
	{"pids unlimited", limited(func(l *specs.LinuxResources) { l.Pids = &specs.LinuxPids{Limit: new(int64(-1))} }), "cat pids/pids.max", result{stdout: "max\n"}},
	{"cpu", limited(func(l *specs.LinuxResources) {
		l.CPU = &specs.LinuxCPU{Shares: new(uint64(512)), Quota: new(int64(50000)), Period: new(uint64(100000)), Burst: new(uint64(1000)), Idle: new(int64(1))}
	}),
		"cat cpu/cpu.shares cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us cpu/cpu.cfs_burst_us cpu/cpu.idle", result{stdout: "3\n50000\n100000\n1000\n1\n"}},
	{"cpuset", limited(func(l *specs.LinuxResources) { l.CPU = &specs.LinuxCPU{Cpus: "0", Mems: "0"} }), "cat cpuset/cpuset.cpus cpuset/cpuset.mems; grep Cpus_allowed_list /proc/self/status", result{stdout: "0\n0\nCpus_allowed_list:\t0\n"}},
	{"memory", limited(func(l *specs.LinuxResources) {
		l.Memory = &specs.LinuxMemory{Limit: new(int64(64 << 20)), Reservation: new(int64(32 << 20)), Swap: new(int64(64 << 20))}
	}),
		"cat memory/memory.limit_in_bytes memory/memory.soft_limit_in_bytes", result{stdout: "67108864\n33554432\n"}},
	{"swappiness", limited(func(l *specs.LinuxResources) { l.Memory = &specs.LinuxMemory{Swappiness: new(uint64(7))} }), "cat memory/memory.swappiness", result{stdout: "7\n"}},
	{"swappiness out of range", limited(func(l *specs.LinuxResources) { l.Memory = &specs.LinuxMemory{Swappiness: new(uint64(700))} }), "true", result{code: 1, stderr: "invalid memory swappiness value: 700"}},
	{"oom killer off", limited(func(l *specs.LinuxResources) { l.Memory = &specs.LinuxMemory{DisableOOMKiller: new(true)} }), "grep oom_kill_disable memory/memory.oom_control", result{stdout: "oom_kill_disable 1\n"}},
	{"swap without memory", limited(func(l *specs.LinuxResources) { l.Memory = &specs.LinuxMemory{Swap: new(int64(64 << 20))} }), "true", result{code: 1, stderr: "memory|swap"}},
	{"block io weight", limited(func(l *specs.LinuxResources) { l.BlockIO = &specs.LinuxBlockIO{Weight: new(uint16(300))} }), "cat blkio/blkio.*weight | head -1", result{stdout: "300\n"}},
	{"block io speed", limited(func(l *specs.LinuxResources) {
		l.BlockIO = &specs.LinuxBlockIO{ThrottleReadBpsDevice: []specs.LinuxThrottleDevice{{LinuxBlockIODevice: specs.LinuxBlockIODevice{Major: 254, Minor: 0}, Rate: 1000000}}}
	}), "cat blkio/blkio.throttle.read_bps_device", result{stdout: "254:0 1000000\n"}},
	{"huge pages", limited(func(l *specs.LinuxResources) {
		l.HugepageLimits = []specs.LinuxHugepageLimit{{Pagesize: "2MB", Limit: 4 << 20}}
	}), "true", asRuncs},
	{"huge pages of a size there is not", limited(func(l *specs.LinuxResources) {
		l.HugepageLimits = []specs.LinuxHugepageLimit{{Pagesize: "3MB", Limit: 4 << 20}}
	}), "true", asRuncs},
	{"rdma", limited(func(l *specs.LinuxResources) {
		l.Rdma = map[string]specs.LinuxRdma{"mlx5_1": {HcaHandles: new(uint32(3))}}
	}), "true", asRuncs},
	{"network class", limited(func(l *specs.LinuxResources) { l.Network = &specs.LinuxNetwork{ClassID: new(uint32(0x100001))} }), "true", asRuncs},
	{"unified", limited(func(l *specs.LinuxResources) { l.Unified = map[string]string{"pids.max": "7"} }), "true", result{code: 1, stderr: "invalid configuration: cannot use unified on cgroup v1"}},
	{"cgroup of a relative path", func(t *testing.T, s *specs.Spec) {
		s.Linux.CgroupsPath = "relative/b"
		t.Cleanup(func() { removeGround(t, "relative") }) // libcontainer makes parents and leaves them
	}, "grep -oE ':(pids|):.*' /proc/1/cgroup | head -1 | cut -d: -f3", result{stdout: "/relative/b\n"}},
	{"cgroup of a path that climbs", func(_ *testing.T, s *specs.Spec) { s.Linux.CgroupsPath = "/../../a" },
		"grep -oE ':(pids|):.*' /proc/1/cgroup | head -1 | cut -d: -f3", result{stdout: "/a\n"}},
}

func TestLimitsOfTheSpecificationAreRuncs(t *testing.T) {
	root := newBusyboxRoot(t)
	v2 := pureV2(t)
	for _, row := range limitFields {
		t.Run(row.name, func(t *testing.T) {
			leavesNothing(t)
			try := func(r *ociRuntime) result {
				b := newBundle(t, []string{"sh", "-c", "cd /sys/fs/cgroup; " + row.script}, func(s *specs.Spec) {
					s.Root.Path = root
					row.change(t, s)
				})
				got := run(t, r.command("run", "--bundle", b.dir, "c"))
				got.stderr = strings.ReplaceAll(got.stderr, filepath.Base(r.program), "NAME")
				return got
			}
			want, r := try(reference(t)), ours(t)
			got := try(r)
			if got != want {
				t.Errorf("got %+v, runc's %+v", got, want)
			}
			if row.want != asRuncs && !v2 {
				r.compare(got, row.want, []string{"run"})
			}
		})
	}
}
