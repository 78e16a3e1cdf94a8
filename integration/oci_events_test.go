package integration

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

var eventsRefusals = []refusal{
	{name: "events of nothing", args: []string{"events"}, says: "requires exactly 1 argument"},
	{name: "events of an unknown id", args: []string{"events", "--stats", "nobody"}, says: "container does not exist"},
	{name: "events of a stopped one", before: stopped, args: []string{"events", "--stats", "c"}, says: "container with id c is not running"},
	{name: "events at no interval", before: started, args: []string{"events", "--interval", "0s", "c"}, says: "duration interval must be greater than 0"},
	{name: "events at a negative interval", before: started, args: []string{"events", "--interval", "-1s", "c"}, says: "duration interval must be greater than 0"},
	{name: "events at what is no interval", before: started, args: []string{"events", "--interval", "often", "c"}, says: "interval"},
}

// An occasion is one line that events prints.
type occasion struct {
	Type string `json:"type"`
	ID   string `json:"id"`
	Data any    `json:"data"`
}

// occasions reads what events has printed so far, but for a last line that is
// still being written.
func occasions(t *testing.T, out string) (all []occasion) {
	t.Helper()
	for line := range strings.Lines(out) {
		if !strings.HasSuffix(line, "\n") {
			break
		}
		var o occasion
		decode(t, line, &o)
		all = append(all, o)
	}
	return all
}

// at returns the value at a path of keys, nil where there is none.
func at(value any, path ...string) any {
	for _, k := range path {
		m, _ := value.(map[string]any)
		value = m[k]
	}
	return value
}

// busy makes counters move that are left out while they are 0: it has a quota of
// CPU time, and what it keeps in /dev/shm is cache.
func busy(t *testing.T) *bundle {
	t.Helper()
	return newBundle(t, []string{"sh", "-c", "echo x > /dev/shm/x; i=0; while test $i -lt 30000; do i=$((i+1)); done; exec sleep 1000"}, func(s *specs.Spec) {
		s.Linux.Resources.Memory = &specs.LinuxMemory{Limit: new(int64(64 << 20)), Swap: new(int64(64 << 20))}
		s.Linux.Resources.CPU = &specs.LinuxCPU{Quota: new(int64(20000)), Period: new(uint64(100000)), Cpus: "0"}
		s.Linux.Resources.Pids = &specs.LinuxPids{Limit: new(int64(50))}
	})
}

// Both read the same container, while nothing in it moves: every key and every
// value is the same.
func TestEventsStatsAreRuncs(t *testing.T) {
	leavesNothing(t)
	r, runc := ours(t), reference(t)
	pid := r.started(busy(t))
	eventually(t, "it sleeps", func() bool { return strings.HasPrefix(content(t, fmt.Sprintf("/proc/%d/cmdline", pid)), "sleep") })
	r.run("pause", "c")
	runc.root = r.root // their states have the same form
	read := func(r *ociRuntime) (value any) {
		decode(t, r.run("events", "--stats", "c").stdout, &value)
		raw, _ := at(value, "data", "memory", "raw").(map[string]any)
		for _, k := range []string{"mapped_file", "total_mapped_file", "file_mapped"} { // by others too
			if raw[k] != nil {
				raw[k] = 0.0
			}
		}
		return value
	}
	var value, want any
	alike := func() bool { value, want = read(r), read(runc); return reflect.DeepEqual(value, want) }
	for end := time.Now().Add(patience); !alike() && time.Now().Before(end); { // the kernel sums up its counters when it likes to
	}
	if !reflect.DeepEqual(value, want) {
		t.Errorf("got\n%v, runc's\n%v", value, want)
	}
	for path, expect := range map[string]any{"type": "stats", "id": "c", "data.pids.limit": 50.0, "data.memory.usage.limit": float64(64 << 20)} {
		if got := at(value, strings.Split(path, ".")...); got != expect {
			t.Errorf("%s = %v, want %v", path, got, expect)
		}
	}
	for _, path := range []string{"data.cpu.usage.total", "data.memory.usage.usage", "data.memory.cache", "data.cpu.throttling.periods"} {
		if n, _ := at(value, strings.Split(path, ".")...).(float64); n <= 0 {
			t.Errorf("%s = %v", path, n)
		}
	}
}

// Also of containers that do not run (yet).
func TestEventsStatsOfACreatedAndOfAPausedContainer(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		r.create(newBundle(t, []string{"sleep", "1000"}), "c")
		for _, then := range []string{"start", "pause", "resume"} {
			if all := occasions(t, r.run("events", "--stats", "c").stdout); len(all) != 1 || all[0].Type != "stats" || all[0].ID != "c" || at(all[0].Data, "pids", "current") == nil {
				t.Errorf("before %s: %+v", then, all)
			}
			r.run(then, "c")
		}
	})
}

func TestEventsPrintStatsUntilTheContainerIsGone(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		r.started(newBundle(t, []string{"sleep", "1000"}))
		p := start(t, r.command("events", "--interval", "50ms", "c"))
		eventually(t, "three lines", func() bool { return len(occasions(t, p.stdout())) >= 3 })
		r.run("delete", "--force", "c")
		if got := p.wait(); got.code != 0 {
			t.Errorf("got %+v", got)
		}
		// The notification of v1 comes also when the group is being removed.
		for _, o := range occasions(t, p.stdout())[:3] {
			if o.Type != "stats" || o.ID != "c" || at(o.Data, "pids", "current") == nil {
				t.Errorf("got %+v", o)
			}
		}
	})
}

func TestEventsTellWhenMemoryRunsOut(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		b := newBundle(t, []string{"sleep", "1000"}, func(s *specs.Spec) {
			s.Linux.Resources.Memory = &specs.LinuxMemory{Limit: new(int64(40 << 20)), Swap: new(int64(40 << 20))}
		})
		r.started(b)
		p := start(t, r.command("events", "--interval", "50ms", "c"))
		eventually(t, "it listens", func() bool { return len(occasions(t, p.stdout())) > 0 })
		r.run("exec", "c", "true")
		if got := run(t, r.command("exec", "c", "dd", "if=/dev/zero", "of=/dev/null", "bs=200M", "count=1")); got.code != 137 {
			t.Errorf("dd: %+v", got)
		}
		var oom []occasion
		eventually(t, "an event", func() bool {
			oom = slices.DeleteFunc(occasions(t, p.stdout()), func(o occasion) bool { return o.Type != "oom" })
			return len(oom) > 0
		})
		if oom[0] != (occasion{Type: "oom", ID: "c"}) || strings.Contains(p.stdout(), `"oom","id":"c","data"`) {
			t.Errorf("got %+v", oom[0])
		}
		r.run("delete", "--force", "c")
		if got := p.wait(); got.code != 0 {
			t.Errorf("got %+v", got)
		}
	})
}

// A caller that reads no more is no reason to go on.
func TestEventsEndWithTheirReader(t *testing.T) {
	leavesNothing(t)
	r := ours(t)
	r.started(newBundle(t, []string{"sleep", "1000"}))
	cmd := r.command("events", "--interval", "20ms", "c")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, cmd)
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	out.Close()
	p.wait()
}

func TestEventsOfASandboxOfDo(t *testing.T) {
	s := newSandboxes(t)
	id, p := s.living("sleep 1000", "--memory", "100m", "--pids", "30")
	all := occasions(t, s.oci("events", "--stats", id).stdout)
	if len(all) != 1 || all[0].ID != id || at(all[0].Data, "memory", "usage", "limit") != float64(100<<20) {
		t.Errorf("got %+v", all)
	}
	if n, _ := at(all[0].Data, "pids", "current").(float64); n < 2 {
		t.Errorf("%v processes: want PID 1 and the command", n)
	}
	s.oci("kill", id, "9")
	p.wait()
}
