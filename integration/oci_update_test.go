package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/cgroups"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

func updated(args ...string) []string { return append(append([]string{"update"}, args...), "c") }

var updateRefusals = []refusal{
	{name: "update of nothing", args: []string{"update"}, says: "requires exactly 1 argument"},
	{name: "update of two", args: []string{"update", "--memory", "1g", "a", "b"}, says: "requires exactly 1 argument"},
	{name: "update of an unknown id", args: []string{"update", "nobody"}, says: "container does not exist"},
	{name: "update of a stopped one", before: stopped, args: updated("--memory", "1g"), says: "container not running"},
	{name: "update with a missing file", before: started, args: updated("--resources", "/nowhere"), says: "/nowhere: no such file or directory"},
	{name: "update with a broken file", before: started, args: updated("--resources", "/etc/passwd"), says: "invalid character"},
	{name: "update with a file of another type", before: func(r *ociRuntime, b *bundle) {
		started(r, b)
		if err := os.WriteFile(filepath.Join(b.dir, "text.json"), []byte(`{"memory":"much"}`), 0o600); err != nil {
			r.t.Fatal(err)
		}
	}, args: updated("--resources", "BUNDLE/text.json"), says: "cannot unmarshal string"},
	{name: "update with an empty stdin", before: started, args: updated("--resources", "-"), says: "EOF"},
	{name: "update with a bad size", before: started, args: updated("--memory", "much"), says: "invalid value for memory: invalid size: 'much'"},
	{name: "update with a bad swap", before: started, args: updated("--memory-swap", "x"), says: "invalid value for memory-swap"},
	{name: "update with a bad reservation", before: started, args: updated("--memory-reservation", "-2"), says: "invalid value for memory-reservation"},
	{name: "update with a bad kernel memory", before: started, args: updated("--kernel-memory", "x"), says: "invalid value for kernel-memory"},
	{name: "update with a bad kernel TCP memory", before: started, args: updated("--kernel-memory-tcp", "x"), says: "invalid value for kernel-memory-tcp"},
	{name: "update with bad shares", before: started, args: updated("--cpu-share", "-1"), says: "invalid value for cpu-share"},
	{name: "update with a bad quota", before: started, args: updated("--cpu-quota", "x"), says: "invalid value for cpu-quota"},
	{name: "update with a bad period", before: started, args: updated("--cpu-period", "-5"), says: "invalid value for cpu-period"},
	{name: "update with a bad burst", before: started, args: updated("--cpu-burst", "x"), says: "invalid value for cpu-burst"},
	{name: "update with a bad idle", before: started, args: updated("--cpu-idle", "x"), says: "invalid value for cpu-idle"},
	{name: "update with a bad realtime period", before: started, args: updated("--cpu-rt-period", "x"), says: "invalid value for cpu-rt-period"},
	{name: "update with a bad realtime runtime", before: started, args: updated("--cpu-rt-runtime", "x"), says: "invalid value for cpu-rt-runtime"},
	{name: "update with pids that are no number", before: started, args: updated("--pids-limit", "x"), says: `pids-limit`},
	{name: "update with a weight that is no number", before: started, args: updated("--blkio-weight", "x"), says: `blkio-weight`},
	{name: "update to a quota the kernel refuses", before: started, args: updated("--cpu-quota", "1"), says: "cpu.*invalid argument"},
	{name: "update to CPUs that are not there", before: started, args: updated("--cpuset-cpus", "4000"), says: "cpuset.cpus"},
	{name: "update to nodes that are not there", before: started, args: updated("--cpuset-mems", "4000"), says: "cpuset.mems"},
	{name: "update of a cache this CPU cannot partition", before: started, args: updated("--l3-cache-schema", "L3:0=f"), says: "Intel RDT/CAT: l3 cache schema is not enabled"},
	{name: "update of a bandwidth this CPU cannot limit", before: started, args: updated("--mem-bw-schema", "MB:0=10"), says: "Intel RDT/MBA: memory bandwidth schema is not enabled"},
}

// realtimeRefusals are of a limit that cgroup v2 does not have.
func realtimeRefusals() []refusal {
	if cgroupV2() {
		return nil
	}
	return []refusal{
		{name: "update to realtime that the group above does not have", before: started, args: updated("--cpu-rt-runtime", "900000", "--cpu-rt-period", "1000000"), says: "cpu.rt_runtime_us.*invalid argument"},
	}
}

// limitOf reads a limit of the container that pid is init of: from the file v1
// where the controller is mounted as cgroup v1, else from v2, where a sandbox's
// init is one group below its limits.
func limitOf(t *testing.T, pid int, v1, v2 string) string {
	t.Helper()
	controller, _, _ := strings.Cut(v1, ".")
	group := strings.TrimSuffix(groupByController(t, pid, controller), "/agent")
	if path := filepath.Join(group, v1); exists(path) {
		return strings.TrimSpace(content(t, path))
	}
	return strings.TrimSpace(content(t, filepath.Join(group, v2)))
}

// A limit is what an update changes: as flags, as JSON, and what the cgroup
// then says, in v1's terms and in v2's, which may have none for it.
type limit struct {
	flags     string
	json      string
	v1, want1 string
	v2, want2 string
	spec      func(*specs.LinuxResources) // what is so before
}

var limits = []limit{
	{flags: "--memory 64m", json: `{"memory":{"limit":67108864}}`, v1: "memory.limit_in_bytes", want1: "67108864", v2: "memory.max", want2: "67108864"},
	{flags: "--memory -1", json: `{"memory":{"limit":-1}}`, v1: "memory.limit_in_bytes", want1: "9223372036854771712", v2: "memory.max", want2: "max",
		spec: func(r *specs.LinuxResources) { r.Memory = &specs.LinuxMemory{Limit: new(int64(64 << 20))} }},
	{flags: "--memory 64m --memory-swap 128m", json: `{"memory":{"limit":67108864,"swap":134217728}}`, v1: "memory.memsw.limit_in_bytes", want1: "134217728", v2: "memory.swap.max", want2: "67108864"},
	{flags: "--blkio-weight 300", json: `{"blockIO":{"weight":300}}`, v1: "blkio.bfq.weight", want1: "300"},
	{flags: "--memory-reservation=32m", json: `{"memory":{"reservation":33554432}}`, v1: "memory.soft_limit_in_bytes", want1: "33554432", v2: "memory.low", want2: "33554432"},
	{flags: "--cpu-share 512", json: `{"cpu":{"shares":512}}`, v1: "cpu.shares", want1: "512", v2: "cpu.weight", want2: strconv.FormatUint(cgroups.ConvertCPUSharesToCgroupV2Value(512), 10)},
	{flags: "--cpu-quota 20000", json: `{"cpu":{"quota":20000}}`, v1: "cpu.cfs_quota_us", want1: "20000", v2: "cpu.max", want2: "20000 100000"},
	{flags: "--cpu-quota -1", json: `{"cpu":{"quota":-1}}`, v1: "cpu.cfs_quota_us", want1: "-1", v2: "cpu.max", want2: "max 100000",
		spec: func(r *specs.LinuxResources) { r.CPU = &specs.LinuxCPU{Quota: new(int64(20000))} }},
	{flags: "--cpu-period 50000", json: `{"cpu":{"period":50000}}`, v1: "cpu.cfs_period_us", want1: "50000", v2: "cpu.max", want2: "max 50000"},
	{flags: "--cpu-quota 40000 --cpu-burst 30000", json: `{"cpu":{"quota":40000,"burst":30000}}`, v1: "cpu.cfs_burst_us", want1: "30000", v2: "cpu.max.burst", want2: "30000"},
	{flags: "--cpu-idle 1", json: `{"cpu":{"idle":1}}`, v1: "cpu.idle", want1: "1", v2: "cpu.idle", want2: "1",
		spec: func(r *specs.LinuxResources) { r.CPU = &specs.LinuxCPU{Shares: new(uint64(512))} }},
	{flags: "--cpu-rt-period 500000", json: `{"cpu":{"realtimePeriod":500000}}`, v1: "cpu.rt_period_us", want1: "500000"},
	{flags: "--cpuset-cpus 0", json: `{"cpu":{"cpus":"0"}}`, v1: "cpuset.cpus", want1: "0", v2: "cpuset.cpus", want2: "0"},
	{flags: "--cpuset-mems 0", json: `{"cpu":{"mems":"0"}}`, v1: "cpuset.mems", want1: "0", v2: "cpuset.mems", want2: "0"},
	{flags: "--pids-limit 33", json: `{"pids":{"limit":33}}`, v1: "pids.max", want1: "33", v2: "pids.max", want2: "33"},
	{flags: "--pids-limit -1", json: `{"pids":{"limit":-1}}`, v1: "pids.max", want1: "max", v2: "pids.max", want2: "max",
		spec: func(r *specs.LinuxResources) { r.Pids = &specs.LinuxPids{Limit: new(int64(20))} }},
	{flags: "--kernel-memory 1g --kernel-memory-tcp 1g --pids-limit 9", json: `{"memory":{"kernel":1073741824,"kernelTCP":1073741824},"pids":{"limit":9}}`, v1: "pids.max", want1: "9", v2: "pids.max", want2: "9"},
}

// limitsHere are those that this host's cgroups have.
func limitsHere() []limit {
	return slices.DeleteFunc(slices.Clone(limits), func(l limit) bool { return cgroupV2() && l.v2 == "" })
}

func (l limit) holds(t *testing.T, pid int) {
	t.Helper()
	got := limitOf(t, pid, l.v1, l.v2)
	if got != l.want1 && got != l.want2 {
		t.Errorf("%s is %q, want %q", l.v1, got, l.want1)
	}
}

func (l limit) start(t *testing.T, r *ociRuntime) (pid int) {
	t.Helper()
	return r.started(newBundle(t, []string{"sleep", "1000"}, func(s *specs.Spec) {
		if l.spec != nil {
			l.spec(s.Linux.Resources)
		}
	}))
}

func TestUpdateByFlagIsInForce(t *testing.T) {
	for _, l := range limitsHere() {
		t.Run(l.flags, func(t *testing.T) {
			likeRunc(t, func(t *testing.T, r *ociRuntime) {
				pid := l.start(t, r)
				if got := r.run(updated(strings.Fields(l.flags)...)...); got != (result{}) {
					t.Errorf("got %+v", got)
				}
				l.holds(t, pid)
			})
		})
	}
}

// As Docker's and containerd's shims call it.
func TestUpdateByJSONIsInForce(t *testing.T) {
	for _, l := range limitsHere() {
		t.Run(l.json, func(t *testing.T) {
			likeRunc(t, func(t *testing.T, r *ociRuntime) {
				pid := l.start(t, r)
				cmd := r.command("update", "--resources", "-", "c")
				cmd.Stdin = strings.NewReader(l.json)
				if got := run(t, cmd); got != (result{}) {
					t.Errorf("got %+v", got)
				}
				l.holds(t, pid)
			})
		})
	}
}

func resourcesFile(t *testing.T, r specs.LinuxResources) string {
	t.Helper()
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "resources.json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestUpdateByFileLeavesTheRestAlone(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		l := limit{spec: func(r *specs.LinuxResources) {
			r.Memory = &specs.LinuxMemory{Limit: new(int64(64 << 20))}
			r.CPU = &specs.LinuxCPU{Quota: new(int64(20000)), Period: new(uint64(50000)), Shares: new(uint64(512))}
			r.Pids = &specs.LinuxPids{Limit: new(int64(50))}
		}}
		pid := l.start(t, r)
		all := func() []string {
			var values []string
			for _, f := range [][2]string{{"memory.limit_in_bytes", "memory.max"}, {"cpu.cfs_quota_us", "cpu.max"},
				{"cpu.cfs_period_us", "cpu.max"}, {"cpu.shares", "cpu.weight"}, {"pids.max", "pids.max"}, {"cpuset.cpus", "cpuset.cpus"}, {"devices.list", "cgroup.type"}} {
				values = append(values, limitOf(t, pid, f[0], f[1]))
			}
			return values
		}
		before := all()
		r.run("update", "--resources="+resourcesFile(t, specs.LinuxResources{}), "c")
		if got := all(); !reflect.DeepEqual(got, before) {
			t.Errorf("an empty update changed %q to %q", before, got)
		}
		r.run("update", "--resources="+resourcesFile(t, specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: new(int64(96 << 20))}}), "c")
		want := slices.Clone(before)
		want[0] = strconv.Itoa(96 << 20)
		if got := all(); !reflect.DeepEqual(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// runc forgets the period at an update that does not name it, and on cgroup v2
// writes the default's with the next quota.
func TestUpdateOfTheQuotaKeepsThePeriod(t *testing.T) {
	leavesNothing(t)
	r := ours(t)
	pid := limit{spec: func(r *specs.LinuxResources) {
		r.CPU = &specs.LinuxCPU{Quota: new(int64(20000)), Period: new(uint64(50000))}
	}}.start(t, r)
	r.run("update", "--memory", "96m", "c")
	r.run("update", "--cpu-quota", "30000", "c")
	limit{v1: "cpu.cfs_quota_us", want1: "30000", v2: "cpu.max", want2: "30000 50000"}.holds(t, pid)
	limit{v1: "cpu.cfs_period_us", want1: "50000", v2: "cpu.max", want2: "30000 50000"}.holds(t, pid)
}

func TestUpdatedMemoryLimitKills(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		r.started(newBundle(t, []string{"sleep", "1000"}))
		eat := []string{"exec", "c", "dd", "if=/dev/zero", "of=/dev/null", "bs=200M", "count=1"}
		r.run(eat...)
		r.run("update", "--memory", "40m", "--memory-swap", "40m", "c")
		if got := run(t, r.command(eat...)); got.code != 137 {
			t.Errorf("got %+v", got)
		}
	})
}

// Block I/O limits come by JSON alone. The second replaces the first.
func TestUpdateLimitsADevice(t *testing.T) {
	major, minor := aDisk(t)
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		pid := r.started(newBundle(t, []string{"sleep", "1000"}))
		for _, rate := range []uint64{1 << 20, 2 << 20} {
			d := specs.LinuxThrottleDevice{Rate: rate}
			d.Major, d.Minor = major, minor
			r.run("update", "--resources", resourcesFile(t, specs.LinuxResources{BlockIO: &specs.LinuxBlockIO{
				ThrottleReadBpsDevice: []specs.LinuxThrottleDevice{d}, ThrottleWriteBpsDevice: []specs.LinuxThrottleDevice{d},
			}}), "c")
			for _, v1 := range []string{"blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device"} {
				want := fmt.Sprintf("%d:%d %d", major, minor, rate)
				want2 := fmt.Sprintf("%d:%d rbps=%d wbps=%d riops=max wiops=max", major, minor, rate, rate)
				if got := limitOf(t, pid, v1, "io.max"); got != want && got != want2 {
					t.Errorf("%s is %q, want %q", v1, got, want)
				}
			}
		}
	})
}

// aDisk returns the numbers of a block device of this host.
func aDisk(t *testing.T) (major, minor int64) {
	t.Helper()
	disks, err := filepath.Glob("/sys/block/*/dev")
	if err != nil || len(disks) == 0 {
		t.Fatalf("no block device in /sys/block: %v", err)
	}
	if _, err := fmt.Sscanf(content(t, disks[0]), "%d:%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	return major, minor
}

func TestUpdatedPidsLimitRefusesForks(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		r.started(newBundle(t, []string{"sleep", "1000"}))
		forks := []string{"exec", "c", "sh", "-c", "for i in $(seq 40); do sleep 1000 >/dev/null 2>&1 & all=\"$all $!\"; done; kill $all; wait"}
		r.run(forks...)
		r.run("update", "--pids-limit", "25", "c") // the runtime's own threads count while exec starts
		if got := run(t, r.command(forks...)); !strings.Contains(got.stderr, "can't fork") {
			t.Errorf("got %+v", got)
		}
	})
}

func TestUpdateOfACreatedAndOfAPausedContainer(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		pid := r.create(newBundle(t, []string{"sleep", "1000"}), "c")
		r.run("update", "--pids-limit", "40", "c")
		r.run("start", "c")
		if got := limitOf(t, pid, "pids.max", "pids.max"); got != "40" {
			t.Errorf("created: %s", got)
		}
		r.run("pause", "c")
		r.run("update", "--pids-limit", "41", "c")
		if got := limitOf(t, pid, "pids.max", "pids.max"); got != "41" || r.state("c").Status != "paused" {
			t.Errorf("paused: %s, %s", got, r.state("c").Status)
		}
		r.run("resume", "c")
	})
}

// Where runc leaves half of a refused update in force, ours goes back.
func TestRefusedUpdateLeavesTheOldLimits(t *testing.T) {
	leavesNothing(t)
	r := ours(t)
	pid := limit{spec: func(r *specs.LinuxResources) {
		r.Pids = &specs.LinuxPids{Limit: new(int64(50))}
		r.Memory = &specs.LinuxMemory{Limit: new(int64(64 << 20))}
		r.CPU = &specs.LinuxCPU{Shares: new(uint64(512)), Quota: new(int64(20000)), Period: new(uint64(100000))}
	}}.start(t, r)
	got := run(t, r.command("update", "--memory", "96m", "--cpu-share", "256", "--pids-limit", "60", "--cpu-quota", "1", "c"))
	if got.code != 1 {
		t.Errorf("got %+v", got)
	}
	for _, l := range []limit{
		{v1: "pids.max", want1: "50", v2: "pids.max", want2: "50"},
		{v1: "memory.limit_in_bytes", want1: "67108864", v2: "memory.max", want2: "67108864"},
		{v1: "cpu.cfs_quota_us", want1: "20000", v2: "cpu.max", want2: "20000 100000"},
		{v1: "cpu.shares", want1: "512", v2: "cpu.weight", want2: strconv.FormatUint(cgroups.ConvertCPUSharesToCgroupV2Value(512), 10)},
	} {
		l.holds(t, pid)
	}
}

// What other programs sent to containers before (a null in place of an object)
// is no reason to crash.
func TestUpdateWithNullsChangesNothing(t *testing.T) {
	leavesNothing(t)
	r := ours(t)
	pid := limit{spec: func(r *specs.LinuxResources) { r.Pids = &specs.LinuxPids{Limit: new(int64(50))} }}.start(t, r)
	cmd := r.command("update", "--resources", "-", "c")
	cmd.Stdin = strings.NewReader(`{"memory":null,"cpu":null,"blockIO":null,"pids":null}`)
	if got := run(t, cmd); got != (result{}) {
		t.Errorf("got %+v", got)
	}
	if got := limitOf(t, pid, "pids.max", "pids.max"); got != "50" {
		t.Errorf("pids.max %s", got)
	}
}

func TestUpdateLimitsASandboxOfDo(t *testing.T) {
	s := newSandboxes(t)
	id, p := s.living("sleep 1000")
	var pids []int
	decode(t, s.oci("ps", "--format", "json", id).stdout, &pids)
	s.oci("update", "--memory", "200m", "--pids-limit", "17", id)
	if m, n := limitOf(t, pids[0], "memory.limit_in_bytes", "memory.max"), limitOf(t, pids[0], "pids.max", "pids.max"); m != "209715200" || n != "49" {
		t.Errorf("memory %s, pids %s; 32 are for what serves its commands", m, n)
	}
	s.oci("kill", id, "9")
	p.wait()
}
