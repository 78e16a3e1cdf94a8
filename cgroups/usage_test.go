package cgroups

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func contains(err error, text string) bool {
	return err != nil && strings.Contains(err.Error(), text)
}

func TestUsageIsTheLeafsOwn(t *testing.T) {
	b := newBox(t, nil)
	g, _ := b.divided(nil)
	l := newLeaf(t, g, "exec-1", LeafOptions{Pids: 100})
	sibling := newLeaf(t, g, "exec-2", LeafOptions{})
	runIn(t, sibling, "memory", "64").line(t)
	p := runIn(t, l, "memory", "32")
	p.line(t)
	p.in.Close()
	p.wait(patience)
	if err := runIn(t, l, "work", "50ms").wait(patience); err != nil {
		t.Fatal(err)
	}
	u, err := l.Usage()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", u)
	if u.CPU < 40*time.Millisecond {
		t.Errorf("processor time %v", u.CPU)
	}
	if b.limits.Memory.Enforced && (u.MemoryPeak < 32*mebibyte || u.MemoryPeak > 64*mebibyte || u.OOMKills != 0) {
		t.Errorf("%+v, with 32 MiB taken here and 64 beside", u)
	}
	if b.limits.Pids.Enforced && u.PidsLimitHits != 0 {
		t.Errorf("%+v", u)
	}
	if u.IORead != Unknown && u.IORead > mebibyte {
		t.Errorf("%+v, without any reading", u)
	}
}

// Against its own limit and against the group's: it counts for who was killed.
func TestLeafWithAMemoryBombDiesAlone(t *testing.T) {
	for name, limits := range map[string][2]int64{"its own limit": {0, 48}, "the group's limit": {96, 0}} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, memoryLimit(limits[0]))
			enforced(t, "memory", b.limits.Memory)
			g, agent := b.divided(nil)
			l := newLeaf(t, g, "exec-1", LeafOptions{})
			sibling := newLeaf(t, g, "exec-2", LeafOptions{})
			if err := l.Limit(LeafLimits{Memory: limits[1] * mebibyte}); err != nil {
				t.Fatal(err)
			}
			companion, other := runIn(t, l, "echo"), runIn(t, sibling, "echo")
			if !companion.echoes(t, patience) || !other.echoes(t, patience) {
				t.Fatal("no answer")
			}
			if bomb := runIn(t, l, "memory", "200"); !bomb.killed() {
				t.Errorf("the bomb: %v", bomb.ProcessState)
			}
			u, err := l.Usage()
			if err != nil || u.OOMKills < 1 || u.MemoryPeak < 24*mebibyte {
				t.Errorf("%+v, %v", u, err)
			}
			if u, err := sibling.Usage(); err != nil || u.OOMKills != 0 {
				t.Errorf("the sibling: %+v, %v", u, err)
			}
			if e, err := g.Events(); err != nil || e.OOMKills < u.OOMKills {
				t.Errorf("the group: %+v, %v", e, err)
			}
			if b.host.Mode == V2 && !companion.killed() { // memory.oom.group
				t.Errorf("the bomb's companion: %v", companion.ProcessState)
			}
			if !agent.echoes(t, patience) || !other.echoes(t, patience) {
				t.Error("the agent or the sibling is dead")
			}
		})
	}
}

func TestUsageLeavesOutWhatKillRefused(t *testing.T) {
	b := newBox(t, nil)
	enforced(t, "pids", b.limits.Pids)
	g, _ := b.divided(nil)
	l := newLeaf(t, g, "exec-1", LeafOptions{Pids: 30})
	p := runIn(t, l, "forks", "later")
	p.line(t)
	if err := l.forbidForks(); err != nil { // what Kill does before it strikes
		t.Fatal(err)
	}
	p.release(t)
	forks := p.line(t)
	raw, err := l.figure(figuresV1[3], make([]byte, 100))
	if err != nil || raw == 0 {
		t.Errorf("no fork was refused: %s, %d, %v", forks, raw, err)
	}
	// On v2 it is the leaf's own limit that refused.
	if u, err := l.Usage(); err != nil || b.host.Mode != V2 && u.PidsLimitHits != 0 {
		t.Errorf("%+v, %v", u, err)
	}
	if err := errors.Join(l.Kill(bounded(t)), l.Delete(bounded(t))); err != nil {
		t.Error(err)
	}
}

func TestLeafLimitsHold(t *testing.T) {
	b := newBox(t, nil)
	enforced(t, "cpu", b.limits.CPU)
	enforced(t, "pids", b.limits.Pids)
	g, _ := b.divided(nil)
	l := newLeaf(t, g, "exec-1", LeafOptions{Pids: 100})
	if err := l.Limit(LeafLimits{Pids: 30, Memory: 64 * mebibyte}); err != nil {
		t.Fatal(err)
	}
	// A leaf of its own: what an emulated clock let it use too much of it has to pay
	// back.
	slow := newLeaf(t, g, "exec-2", LeafOptions{})
	if err := slow.Limit(LeafLimits{CPUs: 0.1}); err != nil {
		t.Fatal(err)
	}
	spin := func() {
		t.Helper()
		if err := runIn(t, slow, "spin", "2s").wait(patience); err != nil {
			t.Fatal(err)
		}
	}
	spin()
	if u, err := slow.Usage(); err != nil || u.CPU <= 0 || u.CPU > 1500*time.Millisecond {
		t.Errorf("%+v, %v: processor time in 2 s at a tenth of a processor", u, err)
	}
	// Which an emulated clock tells badly; the kernel knows what it held back, and by what.
	p, _ := slow.placeOf("cpu")
	file, value := "/cpu.cfs_quota_us", "10000"
	if p.tree.v2 {
		file, value = "/cpu.max", "10000 100000"
	}
	if got := readString(t, p.tree.path(b.path)+"/exec-2"+file); got != value {
		t.Errorf("%s: %s, want %s", file, got, value)
	}
	var stat string
	held := int64(0)
	for try := 0; try < 10 && held < 1; try++ { // on a busy machine the others leave a tenth of a processor at times
		if try > 0 {
			spin()
		}
		stat = readString(t, p.tree.path(b.path)+"/exec-2/cpu.stat")
		var err error
		if held, err = parseKey("nr_throttled")([]byte(stat)); err != nil {
			t.Fatal(err)
		}
	}
	if held < 1 {
		t.Errorf("never held back: %s", stat)
	}
	forks := runIn(t, l, "forks").line(t)
	if u, err := l.Usage(); err != nil || u.PidsLimitHits < 1 || strings.HasPrefix(forks, "30") {
		t.Errorf("forks %s, %+v, %v", forks, u, err)
	}
	if err := errors.Join(l.Kill(bounded(t)), l.Delete(bounded(t))); err != nil {
		t.Error(err)
	}
}

// More than the group has is what the group has.
func TestLeafLimitAboveTheGroups(t *testing.T) {
	b := newBox(t, nil)
	enforced(t, "cpu", b.limits.CPU)
	file, value := "/cpu.cfs_quota_us", "20000"
	tree, v1 := b.host.v1("cpu")
	if !v1 {
		tree, _ = b.host.unified()
		file, value = "/cpu.max", "20000 100000"
	}
	writeString(t, tree.path(b.path)+file, value)
	g, _ := b.divided(nil)
	l := newLeaf(t, g, "exec-1", LeafOptions{})
	if err := l.Limit(LeafLimits{CPUs: 2, Memory: 1 << 50, Pids: 1 << 20}); err != nil {
		t.Error(err)
	}
}

func TestLeafLimitThatTheHostLacks(t *testing.T) {
	for _, view := range []string{"v2 of hybrid", "v1 without pids"} {
		host, ok := leafViews(t)[view]
		if !ok {
			t.Skip("needs controllers on v1: on v2 none can be left out by not mounting it")
		}
		g, _ := newBox(t, nil).divided(host)
		l := newLeaf(t, g, "exec-1", LeafOptions{})
		if err := l.Limit(LeafLimits{Pids: 10}); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: %v", view, err)
		}
		if u, err := l.Usage(); err != nil || u.PidsLimitHits != Unknown {
			t.Errorf("%s: %+v, %v", view, u, err)
		}
	}
}

func TestIOStatIsParsed(t *testing.T) {
	for table, want := range map[string][2]int64{
		"": {0, 0},
		"254:0 rbytes=100 wbytes=7 rios=1 wios=1\n8:0 rbytes=20 wbytes=3 rios=1 wios=1\n": {120, 10},
	} {
		if read, written, err := parseIOStat(table); err != nil || [2]int64{read, written} != want {
			t.Errorf("%q: %d, %d, %v", table, read, written, err)
		}
	}
	if _, _, err := parseIOStat("254:0 rbytes=many"); err == nil {
		t.Error("a number that is none is accepted")
	}
}

// With any throttle ever set on a disk the kernel counts for it, as here.
func TestUsageCountsIO(t *testing.T) {
	name, disk := mebibyteOnDisk(t)
	b := newBox(t, nil)
	enforced(t, "io", b.limits.IO)
	if tree, ok := b.host.v1("blkio"); ok {
		b.mkdir(b.parent + "/throttled")
		writeString(t, tree.path(b.parent)+"/throttled/blkio.throttle.read_bps_device", disk+" 1048576")
	}
	g, _ := b.divided(nil)
	l, idle := newLeaf(t, g, "exec-1", LeafOptions{}), newLeaf(t, g, "exec-2", LeafOptions{})
	runIn(t, l, "read", name).line(t)
	if u, err := l.Usage(); err != nil || u.IORead < mebibyte || u.IORead > 2*mebibyte {
		t.Errorf("1 MiB read: %+v, %v", u, err)
	}
	if u, err := idle.Usage(); err != nil || u.IORead != 0 || u.IOWritten != 0 {
		t.Errorf("nothing read: %+v, %v", u, err)
	}
}
