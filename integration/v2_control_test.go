package integration

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

func TestV2PauseFreezes(t *testing.T) {
	r := oursOnV2(t)
	g := v2container(t, r, func(*specs.Spec) {})
	spinner := start(t, r.command("exec", "c", "sh", "-c", "while :; do :; done"))
	used := func() int { return g.count("cpu.stat", "usage_usec") }
	begin := used()
	eventually(t, "it spins", func() bool { return used() > begin+100_000 })
	r.run("pause", "c")
	g.tell("cgroup.freeze", "cgroup.events")
	if g.count("cgroup.events", "frozen") != 1 || r.state("c").Status != "paused" {
		t.Errorf("after pause: %s", r.state("c").Status)
	}
	still := used()
	time.Sleep(300 * time.Millisecond)     // it would have used a processor
	if got := used(); got > still+30_000 { // what it used on its way to stand still may be counted late
		t.Errorf("used %d µs while frozen", got-still)
	}
	r.run("resume", "c")
	eventually(t, "it spins on", func() bool { return used() > still+100_000 })
	if g.count("cgroup.events", "frozen") != 0 {
		t.Error("still frozen")
	}
	r.run("pause", "c")
	r.run("delete", "--force", "c") // a kill thaws nothing and ends all
	if got := spinner.wait(); got.code != 137 {
		t.Errorf("exec ended with %+v", got)
	}
}

// A process that makes new ones faster than anybody can list them ends by
// cgroup.kill, also without a pid namespace that goes with its first process.
func TestV2KillEndsAForkStorm(t *testing.T) {
	r := oursOnV2(t)
	g := v2container(t, r, func(s *specs.Spec) {
		s.Linux.Namespaces = slices.DeleteFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.PIDNamespace })
		s.Linux.Resources.Pids = &specs.LinuxPids{Limit: new(int64(100))}
	})
	storm := start(t, r.command("exec", "c", "sh", "-c", "f() { f & f & f & }; f; sleep 1000"))
	eventually(t, "a storm", func() bool { return g.count("pids.events", "max") > 0 })
	r.run("kill", "--all", "c", "KILL")
	eventually(t, "nothing is left", func() bool { return g.count("cgroup.events", "populated") == 0 })
	g.tell("pids.peak", "pids.events", "cgroup.events")
	storm.wait()
}

// events prints what memory.events tells, and --stats what was met.
func TestV2EventsTellOfLimits(t *testing.T) {
	r := oursOnV2(t)
	v2container(t, r, func(s *specs.Spec) {
		s.Linux.Resources.Memory = &specs.LinuxMemory{Limit: new(int64(48 << 20)), Swap: new(int64(48 << 20))}
		s.Linux.Resources.Pids = &specs.LinuxPids{Limit: new(int64(50))}
	})
	p := start(t, r.command("events", "--interval", "1h", "c"))
	// What events watches can only be seen by what it tells.
	eventually(t, "an event oom", func() bool {
		run(t, r.command("exec", "c", "dd", "if=/dev/zero", "of=/dev/null", "bs=200M", "count=1"))
		return strings.Contains(p.stdout(), `"type":"oom"`)
	})
	t.Log(strings.TrimSpace(p.stdout()))
	var stats struct {
		Data struct {
			Pids   struct{ Limit int }
			Memory struct{ Usage struct{ Limit, Max int } }
		}
	}
	decode(t, r.run("events", "--stats", "c").stdout, &stats)
	t.Logf("%+v", stats)
	if stats.Data.Pids.Limit != 50 || stats.Data.Memory.Usage.Limit != 48<<20 {
		t.Errorf("got %+v", stats)
	}
	r.run("delete", "--force", "c")
	if got := p.wait(); got.code != 0 {
		t.Errorf("got %+v", got)
	}
}

// A container may make groups of its own in what is delegated to it, and
// cannot lift its limits: nsdelegate holds against its root.
func TestV2DelegatedContainerCannotLiftItsLimits(t *testing.T) {
	r := oursOnV2(t)
	g := v2container(t, r, func(s *specs.Spec) {
		for i, m := range s.Mounts {
			if m.Type == "cgroup" {
				s.Mounts[i].Options = []string{"rw", "nosuid", "noexec", "nodev"}
			}
		}
		s.Linux.Resources.Pids = &specs.LinuxPids{Limit: new(int64(40))}
		s.Linux.Resources.Memory = &specs.LinuxMemory{Limit: new(int64(64 << 20))}
	})
	got := run(t, r.command("exec", "c", "sh", "-c", `cd /sys/fs/cgroup && cat /proc/self/cgroup pids.max &&
		mkdir all inner && for p in $(cat cgroup.procs); do echo $p >all/cgroup.procs || :; done 2>/dev/null
		echo +pids +memory >cgroup.subtree_control && echo 7 >inner/pids.max && cat inner/pids.max &&
		for f in pids.max memory.max memory.high cgroup.max.depth; do echo max >$f && echo "wrote $f"; done; :`))
	t.Logf("%+v", got)
	if got.stdout != "0::/\n40\n7\n" || strings.Count(got.stderr, "write error") < 2 {
		t.Errorf("got %+v", got)
	}
	if g := (v2group{t, strings.TrimSuffix(g.dir, "/all")}); g.count("pids.max") != 40 || g.count("memory.max") != 64<<20 {
		t.Errorf("pids.max %s, memory.max %s", g.read("pids.max"), g.read("memory.max"))
	}
	// Its first process lives in a group that may have no children now.
	if got := run(t, r.command("exec", "c", "cat", "/proc/self/cgroup")); got.code != 0 || got.stdout != "0::/all\n" {
		t.Errorf("exec after that: %+v", got)
	}
}

// Every file that sets a limit has what runc puts there.
func TestV2LimitFilesAreRuncs(t *testing.T) {
	need(t, controllersOnV2())
	leavesNothing(t)
	files := func(r *ociRuntime) map[string]string {
		g := v2container(t, r, func(s *specs.Spec) {
			s.Linux.Resources = &specs.LinuxResources{
				Memory: &specs.LinuxMemory{Limit: new(int64(96 << 20)), Swap: new(int64(128 << 20)), Reservation: new(int64(64 << 20))},
				CPU:    &specs.LinuxCPU{Quota: new(int64(30_000)), Period: new(uint64(50_000)), Shares: new(uint64(700)), Burst: new(uint64(10_000)), Cpus: "0", Mems: "0"},
				Pids:   &specs.LinuxPids{Limit: new(int64(77))},
				Unified: map[string]string{
					"memory.high": "100000000", "cgroup.max.descendants": "5",
				},
			}
		})
		values := map[string]string{}
		entries, err := os.ReadDir(g.dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if info, err := e.Info(); err == nil && info.Mode().Perm() == 0o644 && e.Name() != "cgroup.procs" && e.Name() != "cgroup.threads" {
				if data, err := os.ReadFile(g.dir + "/" + e.Name()); err == nil {
					values[e.Name()] = strings.TrimSpace(string(data))
				}
			}
		}
		r.run("delete", "--force", "c")
		return values
	}
	got, want := files(ours(t)), files(reference(t))
	for name, value := range want {
		if strings.HasSuffix(name, ".pressure") {
			continue
		}
		if got[name] != value {
			t.Errorf("%s is %q, runc's is %q", name, got[name], value)
		}
	}
	for name, value := range map[string]string{
		"memory.max": "100663296", "memory.swap.max": "33554432", "memory.low": "67108864", "memory.high": "99999744",
		"cpu.max": "30000 50000", "cpu.max.burst": "10000", "cpuset.cpus": "0", "pids.max": "77", "cgroup.max.descendants": "5",
	} {
		if got[name] != value {
			t.Errorf("%s is %q, want %q", name, got[name], value)
		}
	}
	t.Logf("%d files alike", len(want))
}
