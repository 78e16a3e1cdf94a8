package cgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const mebibyte = 1 << 20

// enforced skips the test where a limit is not enforced, with the host's reason.
func enforced(t *testing.T, name string, l Limit) {
	t.Helper()
	if !l.Enforced {
		t.Skipf("no %s limit on this host: %s", name, l.Reason)
	}
}

func TestStatsAreWhatProcessesUsed(t *testing.T) {
	b := newBox(t, nil)
	g := b.group(nil)
	nested := b.path + "/nested"
	b.mkdir(nested)
	p := newProgram("memory", "48")
	p.start(t)
	b.join(p.Process.Pid, nested) // nested groups count
	p.release(t)
	p.line(t)
	during, err := g.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if b.limits.Memory.Enforced && (during.Memory < 48*mebibyte || during.MemoryPeak < during.Memory) {
		t.Errorf("memory %d, peak %d with 48 MiB taken", during.Memory, during.MemoryPeak)
	}
	if b.limits.Pids.Enforced && (during.Pids < 1 || during.PidsPeak != Unknown && during.PidsPeak < during.Pids) {
		t.Errorf("pids %d, peak %d with a process", during.Pids, during.PidsPeak)
	}
	if during.CPU <= 0 {
		t.Errorf("processor time %v", during.CPU)
	}
	p.in.Close()
	p.wait(patience)
	after, err := g.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if after.CPU < during.CPU || b.limits.Memory.Enforced && after.MemoryPeak < 48*mebibyte {
		t.Errorf("after the end %+v, during %+v", after, during)
	}
	if b.limits.Memory.Enforced && after.Memory >= 48*mebibyte || b.limits.Pids.Enforced && after.Pids != 0 {
		t.Errorf("current use after the end: %+v", after)
	}
}

func TestCPULimitHolds(t *testing.T) {
	b := newBox(t, &parentLimits{Totals: Totals{CPUs: 0.1}})
	enforced(t, "cpu", b.limits.CPU)
	p := b.run("spin", "2s") // of many periods: the clock of an emulated machine stutters
	if err := p.wait(patience); err != nil {
		t.Fatal(err)
	}
	s, err := b.group(nil).Stats()
	if err != nil {
		t.Fatal(err)
	}
	if s.CPU <= 0 || s.CPU > time.Second {
		t.Errorf("%v of processor time in 2 s at a tenth of a processor", s.CPU)
	}
}

func TestIOLimitHoldsAndIsCounted(t *testing.T) {
	name, disk := mebibyteOnDisk(t)
	b := newBox(t, nil)
	enforced(t, "io", b.limits.IO)
	b.limitReads(disk, 2*mebibyte)
	took, err := time.ParseDuration(b.run("read", name).line(t))
	if err != nil {
		t.Fatal(err)
	}
	if took < 300*time.Millisecond {
		t.Errorf("1 MiB at 2 MiB/s took %v", took)
	}
	s, err := b.group(nil).Stats()
	if err != nil || s.IORead < mebibyte {
		t.Errorf("read %d bytes, %v, want 1 MiB", s.IORead, err)
	}
}

// mebibyteOnDisk is a file of a mebibyte, and the disk it is on.
func mebibyteOnDisk(t *testing.T) (name, disk string) {
	t.Helper()
	name = filepath.Join(t.TempDir(), "data")
	writeString(t, name, string(make([]byte, mebibyte)))
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	return name, diskOf(t, f)
}

// limitReads bounds the bytes a second that are read from a disk, as libcontainer
// does.
func (b *box) limitReads(disk string, bytes int) {
	if tree, ok := b.host.v1("blkio"); ok {
		writeString(b.t, tree.path(b.path)+"/blkio.throttle.read_bps_device", fmt.Sprint(disk, " ", bytes))
	} else {
		writeString(b.t, b.host.root+b.path+"/io.max", fmt.Sprint(disk, " rbps=", bytes))
	}
}

// diskOf returns the number of the disk that a file is on, as MAJOR:MINOR.
func diskOf(t *testing.T, f *os.File) string {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	disk := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	if unix.Major(st.Dev) == 0 {
		t.Skipf("%s is not on a block device", f.Name())
	}
	if _, err := os.Stat("/sys/dev/block/" + disk + "/partition"); err == nil {
		t.Skipf("%s is on a partition: throttles are for whole disks", f.Name())
	}
	return disk
}

func TestStatsThatAreNotKeptAreUnknown(t *testing.T) {
	b := newBox(t, nil)
	if b.host.Mode != Hybrid {
		t.Skip("needs a hybrid host, whose v2 hierarchy has no controllers")
	}
	s, err := b.group(views(t)["v2 of hybrid"]).Stats()
	if err != nil {
		t.Fatal(err)
	}
	want := unknownStats()
	want.CPU = s.CPU // v2 keeps it without a controller
	if s != want || s.CPU < 0 {
		t.Errorf("%+v", s)
	}
}

func TestMissingGroupIsErrNotExist(t *testing.T) {
	for name, h := range views(t) {
		g, err := h.Open(testPrefix + "missing")
		if err != nil {
			t.Fatal(err)
		}
		_, statsErr := g.Stats()
		_, eventsErr := g.Events()
		for what, err := range map[string]error{
			"Stats": statsErr, "Events": eventsErr, "Freeze": g.Freeze(bounded(t)), "Thaw": g.Thaw(bounded(t)),
		} {
			if !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: %s: %v", name, what, err)
			}
		}
		procs, err := g.Procs()
		if len(procs) != 0 || err != nil {
			t.Errorf("%s: Procs: %v, %v", name, procs, err)
		}
		if err := errors.Join(g.Kill(bounded(t)), g.Delete(bounded(t))); err != nil {
			t.Errorf("%s: Kill, Delete: %v", name, err)
		}
	}
}

// fakeV2 lays out a group as cgroup v2 does, for files that the kernel here
// does not have.
func fakeV2(t *testing.T, files map[string]string) *Group {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, "box", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		writeString(t, path, content)
	}
	h := &Host{Mode: V2, root: root, trees: []tree{{dir: root, v2: true}}}
	g, err := h.Open("/box")
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestV2StatsAreParsed(t *testing.T) {
	files := map[string]string{
		"cgroup.controllers": "cpu io memory pids\n",
		"cpu.stat":           "usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\nnr_periods 3\n",
		"memory.stat":        "anon 4096\nfile 8192\n",
		"memory.current":     "1000\n", "memory.peak": "5000\n", "memory.max": "max\n",
		"pids.current": "3\n", "pids.peak": "9\n", "pids.max": "max\n",
		"io.stat": "254:0 rbytes=100 wbytes=7 rios=1 wios=1 dbytes=0 dios=0\n8:0 rbytes=20 wbytes=3 rios=1 wios=1\n",
	}
	got, err := fakeV2(t, files).Stats()
	if want := (Stats{1500 * time.Millisecond, 1000, 5000, 3, 9, 120, 10}); got != want || err != nil {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	for _, file := range []string{"memory.peak", "pids.peak"} { // an older kernel
		delete(files, file)
	}
	files["cgroup.controllers"] = "cpu memory pids\n"
	got, err = fakeV2(t, files).Stats()
	if want := (Stats{1500 * time.Millisecond, 1000, Unknown, 3, Unknown, Unknown, Unknown}); got != want || err != nil {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
}

func TestBlkioWithoutDevicesIsUnknown(t *testing.T) {
	for _, c := range []struct {
		table         string
		read, written int64
	}{
		{"Total 0\n", Unknown, Unknown},
		{"", Unknown, Unknown},
		{"254:0 Read 100\n254:0 Write 7\n254:0 Sync 107\n254:0 Total 107\n8:16 Read 1\n8:16 Write 0\nTotal 108\n", 101, 7},
	} {
		read, written, err := parseBlkio(c.table)
		if read != c.read || written != c.written || err != nil {
			t.Errorf("%q: %d, %d, %v", c.table, read, written, err)
		}
	}
	if _, _, err := parseBlkio("254:0 Read many\n"); err == nil {
		t.Error("a number that is none is accepted")
	}
}
