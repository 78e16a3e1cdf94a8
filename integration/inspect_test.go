package integration

import (
	"fmt"
	"strings"
	"testing"
)

// A stopped sandbox has no commands, and inspect still describes it.
func TestInspectDescribesASandboxAndItsCommands(t *testing.T) {
	s := newSandboxes(t)
	s.up("box", "--memory", "300m", "--env", "A=b")
	id := s.asleep("box", "1005")
	var report struct {
		ID, Status string
		Pid        int
		Config     struct {
			Limits struct{ Memory string }
			Env    map[string]string
		}
		Limits struct{ Memory string }
		Execs  []execInfo
	}
	decode(t, s.oci("inspect", "box").stdout, &report)
	if report.ID != "box" || report.Status != "running" || report.Pid != s.pid("box") ||
		report.Config.Limits.Memory != "300m" || report.Config.Env["A"] != "b" || report.Limits.Memory != "enforced" {
		t.Errorf("inspect: %+v", report)
	}
	if len(report.Execs) != 1 || report.Execs[0].ID != id || !report.Execs[0].Detached {
		t.Errorf("commands: %+v", report.Execs)
	}
	s.oci("kill", "box", "KILL")
	eventually(t, "inspect tells the end", func() bool {
		return strings.Contains(s.oci("inspect", "box").stdout, `"status": "stopped"`)
	})
	const none = "sandbox-runtime: sandbox nope does not exist: it was removed, or never made\n"
	if got := run(t, s.command("inspect", "nope")); got != (result{1, "", none}) {
		t.Errorf("inspect nope: %+v", got)
	}
}

// Stats has each process that was killed for memory, and each fork that was refused, once: while the
// command runs, and after its cgroup has gone.
func TestStatsCountWhatLimitsHaveRefused(t *testing.T) {
	s := newSandboxes(t)
	s.up("box", "--memory", "64m", "--pids", "20")
	const eats = "head -c 200m /dev/zero | tail -c 200m >/dev/null"
	count := func() (use struct {
		OOMKills     int64 `json:"oom_kills"`
		ForksRefused int64 `json:"forks_refused"`
	}) {
		t.Helper()
		decode(t, s.oci("stats", "--json", "box").stdout, &use)
		return use
	}
	s.detached("box", eats+"; exec sleep 1000")
	eventually(t, "a kill is counted", func() bool { return count().OOMKills > 0 })
	before := count()
	kills := before.OOMKills
	for range 2 {
		var r struct{ Violations []struct{ Detail string } }
		decode(t, run(t, s.command("exec", "--json", "box", "sh", "-c", eats)).stdout, &r)
		var n int64
		if len(r.Violations) != 1 {
			t.Fatalf("%+v", r)
		}
		if _, err := fmt.Sscanf(r.Violations[0].Detail, "memory limit of 64m reached, processes killed: %d", &n); err != nil {
			t.Fatalf("%+v: %v", r, err)
		}
		kills += n
		run(t, s.command("exec", "box", "sh", "-c", "for i in $(seq 40); do sleep 0.1 & done"))
	}
	s.sh("box", "true")
	if use := count(); use.OOMKills != kills || use.ForksRefused != before.ForksRefused+2 {
		t.Errorf("before %+v, after %+v, want %d kills", before, use, kills)
	}
}

func TestStatsShowsTheUseOfSandboxes(t *testing.T) {
	s := newSandboxes(t)
	s.up("one", "--memory", "400m", "--pids", "99")
	s.up("two")
	s.sh("one", "dd if=/dev/zero of=/dev/null bs=100M count=1 2>/dev/null; true | cat | cat | cat | cat")
	s.asleep("one", "1006")
	table := strings.Split(s.oci("stats", "one", "two").stdout, "\n")
	if len(table) != 4 || !strings.HasPrefix(table[0], "ID ") || !strings.HasPrefix(table[1], "one ") || !strings.HasPrefix(table[2], "two ") ||
		!strings.Contains(table[1], "/ 400MiB ") || !strings.Contains(table[1], " / 99 ") {
		t.Errorf("table: %q", table)
	}
	// The peaks are those of the first command, which has ended.
	if f := strings.Fields(table[1]); len(f) < 10 || f[1] == "0s" || f[2] == f[5] || f[6] == f[9] {
		t.Errorf("no time, or no peaks: %q", f)
	}
	// An unknown name does not keep the others back.
	got := run(t, s.command("stats", "--json", "nope", "one"))
	var use struct {
		ID              string
		CPUNS           int64 `json:"cpu_ns"`
		MemoryPeakBytes int64 `json:"memory_peak_bytes"`
		Pids            int64
	}
	decode(t, got.stdout, &use)
	if use.ID != "one" || use.CPUNS <= 0 || use.MemoryPeakBytes < 100<<20 || use.Pids < 2 {
		t.Errorf("JSON: %+v", use)
	}
	if got.code != 1 || got.stderr != "sandbox-runtime: sandbox nope does not exist: it was removed, or never made\n" {
		t.Errorf("an unknown name: %+v", got)
	}
}
