package cgroups

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func memoryLimit(mib int64) *parentLimits {
	return &parentLimits{Totals: Totals{Memory: mib * mebibyte}}
}

func TestOOMKillIsCounted(t *testing.T) {
	b := newBox(t, memoryLimit(48))
	enforced(t, "memory", b.limits.Memory)
	p := b.run("memory", "1024")
	if !p.killed() {
		t.Fatalf("a program took 1 GiB of 48 MiB: %v", p.ProcessState)
	}
	parent, err := b.host.Open(b.parent)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range []*Group{b.group(nil), parent} { // the parent counts its children's
		if e, err := g.Events(); err != nil || e.OOMKills != 1 {
			t.Errorf("%s: %+v, %v", g.path, e, err)
		}
	}
	sibling := b.parent + "/sibling"
	b.mkdir(sibling)
	g, err := b.host.Open(sibling)
	if err != nil {
		t.Fatal(err)
	}
	if e, err := g.Events(); err != nil || e.OOMKills != 0 {
		t.Errorf("a sibling: %+v, %v", e, err)
	}
}

// A kill because a group above has no memory left is told from a kill at the own limit.
func TestOOMKillsByAGroupAboveAreToldFromOwnOnes(t *testing.T) {
	b := newBox(t, memoryLimit(48))
	enforced(t, "memory", b.limits.Memory)
	parent, err := b.host.Open(b.parent)
	if err != nil {
		t.Fatal(err)
	}
	group := b.group(nil)
	if err := group.LimitTotals(Totals{Memory: 128 * mebibyte}); err != nil {
		t.Fatal(err)
	}
	if p := b.run("memory", "1024"); !p.killed() {
		t.Fatalf("a program took 1 GiB of 48 MiB: %v", p.ProcessState)
	}
	if met, err := group.MetMemoryLimit(0); err != nil || met {
		t.Errorf("the group has 128 MiB, the one above 48: met its limit: %v, %v", met, err)
	}
	if met, err := parent.MetMemoryLimit(0); err != nil || !met {
		t.Errorf("the group above: met its limit: %v, %v", met, err)
	}
	if b.host.Mode == V2 {
		return // the kernel counts
	}
	b.limit(memoryLimit(96).Totals)
	for earlier, want := range map[int64]bool{0: false, 48 * mebibyte: true} {
		if met, err := parent.MetMemoryLimit(earlier); err != nil || met != want {
			t.Errorf("with a raised limit, %d before: met its limit: %v, %v", earlier, met, err)
		}
	}
}

func TestReclaimIsNoOOMKill(t *testing.T) {
	b := newBox(t, memoryLimit(48))
	enforced(t, "memory", b.limits.Memory)
	dir := t.TempDir()
	if magic, err := fsMagic(dir); err != nil || magic == unix.TMPFS_MAGIC {
		t.Skipf("%s is on a tmpfs, whose pages cannot be reclaimed (%v)", dir, err)
	}
	if err := b.run("fill", filepath.Join(dir, "data"), "128").wait(patience); err != nil {
		t.Fatal(err)
	}
	if s, err := b.group(nil).Stats(); err != nil || s.MemoryPeak < 40*mebibyte {
		t.Errorf("128 MiB of page cache at a limit of 48 MiB: peak %d, %v", s.MemoryPeak, err)
	}
	if e, err := b.group(nil).Events(); err != nil || e.OOMKills != 0 {
		t.Errorf("%+v, %v", e, err)
	}
}

func TestPidsLimitHitIsCounted(t *testing.T) {
	b := newBox(t, &parentLimits{pids: 40})
	enforced(t, "pids", b.limits.Pids)
	before, err := b.group(nil).Events()
	if err != nil || before.PidsLimitHits != 0 {
		t.Fatalf("before: %+v, %v", before, err)
	}
	p := b.run("forks")
	if said := p.line(t); !strings.HasSuffix(said, "resource temporarily unavailable") {
		t.Errorf("the program says %q", said)
	}
	parent, err := b.host.Open(b.parent)
	if err != nil {
		t.Fatal(err)
	}
	if e, err := parent.Events(); err != nil || e.PidsLimitHits < 1 || e.OOMKills > 0 {
		t.Errorf("%+v, %v", e, err)
	}
	s, err := parent.Stats()
	if err != nil || s.Pids != 40 || s.PidsPeak != Unknown && s.PidsPeak < 40 {
		t.Errorf("%+v, %v, want 40 tasks", s, err)
	}
}

// The three meanings that a v2 event file has had; see counter.
func TestV2EventsAreParsed(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  Events
	}{
		"inclusive, a nested group is gone": {map[string]string{
			"memory.events":       "low 0\nhigh 0\nmax 12\noom 3\noom_kill 5\noom_group_kill 0\n",
			"memory.events.local": "oom_kill 1\n", "nested/memory.events": "oom_kill 2\n", "nested/memory.events.local": "oom_kill 2\n",
			"pids.events": "max 4\n", "pids.events.local": "max 4\n", "nested/pids.events": "max 0\n", "nested/pids.events.local": "max 0\n",
		}, Events{OOMKills: 5, PidsLimitHits: 4}},
		"mounted with memory_localevents and pids_localevents": {map[string]string{
			"memory.events": "oom_kill 1\n", "memory.events.local": "oom_kill 1\n",
			"nested/memory.events": "oom_kill 2\n", "nested/memory.events.local": "oom_kill 2\n",
			"pids.events": "max 1\n", "pids.events.local": "max 1\n", "nested/pids.events": "max 6\n", "nested/pids.events.local": "max 6\n",
		}, Events{OOMKills: 3, PidsLimitHits: 7}},
		"before Linux 6.11": {map[string]string{
			"memory.events": "oom_kill 3\n", "memory.events.local": "oom_kill 1\n", "nested/memory.events.local": "oom_kill 2\n", "nested/memory.events": "oom_kill 2\n",
			"pids.events": "max 0\n", "nested/pids.events": "max 6\n",
		}, Events{OOMKills: 3, PidsLimitHits: 6}},
		"no controllers": {map[string]string{"cgroup.events": "populated 0\n"}, Events{Unknown, Unknown}},
	} {
		if got, err := fakeV2(t, c.files).Events(); got != c.want || err != nil {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, c.want)
		}
	}
	if _, err := fakeV2(t, map[string]string{"memory.events": "oom_kill many\n"}).Events(); err == nil {
		t.Error("a number that is none is accepted")
	}
}
