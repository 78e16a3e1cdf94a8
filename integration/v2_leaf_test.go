package integration

import (
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
)

// What the runtime does to a container goes on when its group is divided and
// has leaves: its processes are one level further down.
func TestV2DividedGroupIsStillTheContainers(t *testing.T) {
	r := oursOnV2(t)
	dir := v2container(t, r, func(s *specs.Spec) {
		s.Linux.Resources.Memory = &specs.LinuxMemory{Limit: new(int64(64 << 20)), Swap: new(int64(64 << 20))}
		s.Linux.Resources.Pids = &specs.LinuxPids{Limit: new(int64(40))}
	})
	host, err := cgroups.Probe()
	if err != nil {
		t.Fatal(err)
	}
	group, err := host.Open(strings.TrimPrefix(dir.dir, "/sys/fs/cgroup"))
	if err != nil {
		t.Fatal(err)
	}
	defer group.Close()
	if err := group.Divide(r.state("c").PID, 0); err != nil {
		t.Fatal(err)
	}
	leaf, err := group.CreateLeaf("exec-1", cgroups.LeafOptions{Pids: 20})
	if err != nil {
		t.Fatal(err)
	}
	defer leaf.Close()

	if got := r.run("exec", "c", "cat", "/proc/self/cgroup"); got.stdout != "0::/agent\n" {
		t.Errorf("exec: %+v", got)
	}
	if got := strings.Fields(r.run("ps", "--format", "json", "c").stdout); len(got) != 1 || got[0] == "[]" || got[0] == "null" {
		t.Errorf("ps: %q", got)
	}
	r.run("update", "--pids-limit", "30", "--memory", "50331648", "--memory-swap", "50331648", "c")
	if dir.count("pids.max") != 30 || dir.count("memory.max") != 48<<20 {
		t.Errorf("after update: pids.max %s, memory.max %s", dir.read("pids.max"), dir.read("memory.max"))
	}
	var stats struct {
		Data struct {
			Pids   struct{ Current, Limit int }
			Memory struct{ Usage struct{ Limit, Usage int } }
		}
	}
	decode(t, r.run("events", "--stats", "c").stdout, &stats)
	if d := stats.Data; d.Pids.Current != 1 || d.Pids.Limit != 30 || d.Memory.Usage.Limit != 48<<20 || d.Memory.Usage.Usage == 0 {
		t.Errorf("events: %+v", stats)
	}
	r.run("pause", "c")
	if (v2group{t, dir.dir + "/agent"}).count("cgroup.events", "frozen") != 1 {
		t.Error("the agent's group is not frozen")
	}
	r.run("resume", "c")
	r.run("delete", "--force", "c")
	if exists(dir.dir) {
		t.Error("the group is still there")
	}
}
