package integration

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// v2sandbox starts the sandbox "box" and returns its group, and that of its PID 1
// below.
func v2sandbox(t *testing.T, s *sandboxes, flags ...string) (box, agent v2group) {
	t.Helper()
	s.up("box", flags...)
	agent = v2groupOf(t, s.pid("box"))
	if filepath.Base(agent.dir) != "agent" {
		t.Fatalf("PID 1 is in %s", agent.dir)
	}
	return v2group{t, filepath.Dir(agent.dir)}, agent
}

func TestV2EachExecHasALeaf(t *testing.T) {
	need(t, controllersOnV2())
	s := newSandboxes(t)
	box, agent := v2sandbox(t, s, "--memory", "150m", "--pids", "40")
	for _, c := range []string{"cpu", "io", "memory", "pids"} {
		if enabled := box.read("cgroup.subtree_control"); !slices.Contains(strings.Fields(enabled), c) {
			t.Errorf("%s is not enabled for execs: %s", c, enabled)
		}
	}
	id := s.detached("box", "sleep 1030 & exec sleep 1031")
	eventually(t, "both run", func() bool { return len(s.sleeps("box")) == 2 })
	leaf := v2group{t, filepath.Join(box.dir, "exec-"+id)}
	for _, pid := range s.execs("box")[id].Pids {
		if got := v2groupOf(t, pid); got != leaf {
			t.Errorf("process %d is in %s, want %s", pid, got.dir, leaf.dir)
		}
	}
	if leaf.count("pids.max") != 40 || box.count("pids.max") <= 40 || box.count("memory.max") != 150<<20 || leaf.count("memory.oom.group") != 1 {
		t.Errorf("limits: pids %s in %s, memory %s, oom.group %s",
			leaf.read("pids.max"), box.read("pids.max"), box.read("memory.max"), leaf.read("memory.oom.group"))
	}
	leaf.tell("cgroup.procs", "pids.current", "memory.current")
	// PID 1, and who takes down what the detached one prints.
	if got := strings.Fields(agent.read("cgroup.procs")); len(got) != 2 {
		t.Errorf("beside PID 1: %q", got)
	}

	// Both are frozen and killed with the rest, by who knows only the container.
	s.oci("pause", "box")
	if box.count("cgroup.events", "frozen") != 1 || leaf.count("cgroup.events", "frozen") != 1 {
		t.Error("they are not frozen")
	}
	s.oci("resume", "box")
	s.oci("update", "--pids-limit", "60", "--memory", "200m", "--memory-swap", "200m", "box")
	if box.count("pids.max") != 60+32 || box.count("memory.max") != 200<<20 {
		t.Errorf("after update: pids %s, memory %s", box.read("pids.max"), box.read("memory.max"))
	}
	s.oci("kill", "box", "KILL")
	eventually(t, "nothing lives there", func() bool { return box.count("cgroup.events", "populated") == 0 })
	s.oci("delete", "box")
	if exists(box.dir) {
		t.Error("the group is still there")
	}
}

// A Result is what the kernel has counted for the command's leaf.
func TestV2ResultHasTheLeafsCounts(t *testing.T) {
	need(t, controllersOnV2())
	s := newSandboxes(t)
	dir := t.TempDir()
	v2disk(t, dir)
	v2sandbox(t, s, "--workspace", dir)
	counts := func(script string) (r struct {
		PeakMemory uint64  `json:"peak_memory_bytes"`
		CPU        float64 `json:"cpu_ms"`
		IOWritten  int64   `json:"io_written_bytes"`
	}) {
		t.Helper()
		decode(t, s.exec("--json", "box", "sh", "-c", script).stdout, &r)
		t.Logf("%s: %+v", script, r)
		return r
	}
	if r := counts("dd if=/dev/zero of=file bs=1M count=20 conv=fsync"); r.PeakMemory < 20<<20 || r.IOWritten < 20<<20 || r.CPU <= 0 {
		t.Errorf("a large one: %+v", r)
	}
	if r := counts("true"); r.PeakMemory == 0 || r.PeakMemory > 10<<20 || r.IOWritten != 0 || r.CPU <= 0 {
		t.Errorf("the next: %+v", r)
	}
}

// Whose memory runs out is killed with its whole leaf; the events say whose.
func TestV2MemoryRunsOutInOneLeaf(t *testing.T) {
	need(t, controllersOnV2())
	s := newSandboxes(t)
	box, agent := v2sandbox(t, s, "--memory", "100m")
	id := s.asleep("box", "1032")
	for n := range 2 {
		o := s.execJSON("box", "sh", "-c", "(setsid sleep 1033 &); tail /dev/zero; echo on")
		if o.Status != "oom_killed" || o.Stdout != "" || !o.hit("limit", "memory") {
			t.Errorf("got %+v", o)
		}
		if got := box.count("memory.events", "oom_group_kill"); got != n+1 {
			t.Errorf("%d groups were killed, want %d", got, n+1)
		}
	}
	box.tell("memory.events")
	if got := s.sleeps("box"); !slices.Equal(got, []string{"1032"}) {
		t.Errorf("asleep afterwards: %q", got)
	}
	for _, g := range []v2group{agent, {t, fmt.Sprintf("%s/exec-%s", box.dir, id)}} {
		if g.count("memory.events", "oom_kill") != 0 {
			t.Errorf("%s: %s", g.dir, g.read("memory.events"))
		}
	}
}
