package integration

import (
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
