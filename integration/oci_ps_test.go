package integration

import (
	"slices"
	"strconv"
	"strings"
	"testing"
)

var psRefusals = []refusal{
	{name: "ps of nothing", args: []string{"ps"}, says: "requires a minimum of 1 argument"},
	{name: "ps of an unknown id", args: []string{"ps", "nobody"}, says: "container does not exist"},
	{name: "ps in an unknown format", before: started, args: []string{"ps", "--format", "xml", "c"}, says: "invalid format option"},
	{name: "ps with an option ps does not know", before: started, args: []string{"ps", "c", "--nonsense"}, says: "exit status 1: .*(?s:error: unknown)"},
	{name: "ps without the column PID", before: started, args: []string{"ps", "c", "-o", "comm"}, says: "couldn't find PID field in ps output"},
}

// threeProcesses starts the container "c" with init and two children.
func threeProcesses(t *testing.T, r *ociRuntime) (pids []int) {
	t.Helper()
	r.started(newBundle(t, []string{"sh", "-c", "sleep 1001 & sleep 1002 & exec sleep 1000"}))
	eventually(t, "three processes sleep", func() bool {
		pids = nil
		decode(t, r.run("ps", "--format", "json", "c").stdout, &pids)
		asleep := func(pid int) bool { return strings.HasPrefix(commandOf(pid), "sleep 100") } // and is no shell any more
		return len(pids) == 3 && asleep(pids[0]) && asleep(pids[1]) && asleep(pids[2])
	})
	return pids
}

func TestPsPrintsPids(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		pids := threeProcesses(t, r)
		if len(pids) != 3 || !slices.Contains(pids, r.state("c").PID) {
			t.Errorf("pids %v of init %d", pids, r.state("c").PID)
		}
		for _, pid := range pids {
			if !strings.HasPrefix(content(t, "/proc/"+strconv.Itoa(pid)+"/cmdline"), "sleep\x00100") {
				t.Errorf("%d is another process", pid)
			}
		}
		// As the flag may come: short, and with "=".
		for _, args := range [][]string{{"ps", "-f", "json", "c"}, {"ps", "--format=json", "c"}} {
			var again []int
			decode(t, r.run(args...).stdout, &again)
			slices.Sort(again)
			slices.Sort(pids)
			if !slices.Equal(again, pids) {
				t.Errorf("%q: %v, want %v", args, again, pids)
			}
		}
		r.run("kill", "c", "9")
		r.waitUntil("c", "stopped")
		if got := r.run("ps", "--format", "json", "c").stdout; got != "null\n" {
			t.Errorf("a stopped container's: %q", got)
		}
	})
}

func TestPsPrintsTheLinesOfPs(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		pids := threeProcesses(t, r)
		for options, header := range map[string][]string{
			"":                        {"UID", "PID", "PPID", "C", "STIME", "TTY", "TIME", "CMD"},
			"-e -o ppid,pid,args":     {"PPID", "PID", "COMMAND"},
			"aux":                     {"USER", "PID", "%CPU", "%MEM", "VSZ", "RSS", "TTY", "STAT", "START", "TIME", "COMMAND"},
			"-eo pid,user --sort pid": {"PID", "USER"},
		} {
			lines := strings.Split(strings.TrimSuffix(r.run(append([]string{"ps", "c"}, strings.Fields(options)...)...).stdout, "\n"), "\n")
			if got := strings.Fields(lines[0]); !slices.Equal(got, header) {
				t.Errorf("ps %s: header %q, want %q", options, got, header)
			}
			column := slices.Index(header, "PID")
			var found []int
			for _, line := range lines[1:] {
				pid, err := strconv.Atoi(strings.Fields(line)[column])
				if err != nil {
					t.Fatalf("ps %s: %q", options, line)
				}
				found = append(found, pid)
			}
			slices.Sort(found)
			slices.Sort(pids)
			if !slices.Equal(found, pids) {
				t.Errorf("ps %s: processes %v, want %v", options, found, pids)
			}
		}
	})
}

// Processes in a cgroup below the container's are the container's too.
func TestPsSeesASandboxOfDo(t *testing.T) {
	s := newSandboxes(t)
	id, p := s.living("sleep 1003")
	eventually(t, "ps shows the command", func() bool { return strings.Contains(s.oci("ps", id).stdout, "sleep 1003") })
	var pids []int
	decode(t, s.oci("ps", "--format", "json", id).stdout, &pids)
	if len(pids) < 2 {
		t.Errorf("pids %v: want PID 1 and the command", pids)
	}
	s.oci("kill", id, "9")
	p.wait()
}
