package cgroups

import (
	"testing"
)

func TestSettingsAreWhatWasSet(t *testing.T) {
	b := newBox(t, nil)
	unlimited, err := b.group(nil).Settings()
	if err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string]float64{
		"memory": float64(unlimited.Memory), "swap": float64(unlimited.MemoryAndSwap),
		"pids": float64(unlimited.Pids), "cpus": unlimited.CPUs,
	} {
		if got != NoLimit && got != Unknown {
			t.Errorf("%s of a new group: %v", name, got)
		}
	}
	g := b.group(nil)
	set := func(k kind, value string) {
		if home, _, ok := b.host.limitHierarchy(k); ok {
			file := k.v1File
			if b.host.Mode == V2 {
				file = k.v2File
			}
			writeString(t, home.path(g.path)+"/"+file, value)
		}
	}
	set(kind{v1: "memory", v2: "memory", v1File: "memory.limit_in_bytes", v2File: "memory.max"}, "67108864")
	set(kind{v1: "pids", v2: "pids", v1File: "pids.max", v2File: "pids.max"}, "77")
	if b.host.Mode == V2 {
		set(kind{v2: "cpu", v2File: "cpu.max"}, "25000 50000")
	} else {
		set(kind{v1: "cpu", v1File: "cpu.cfs_period_us"}, "50000")
		set(kind{v1: "cpu", v1File: "cpu.cfs_quota_us"}, "25000")
	}
	got, err := g.Settings()
	if err != nil {
		t.Fatal(err)
	}
	for name, limit := range map[string]struct {
		enforced  Limit
		got, want float64
	}{
		"memory": {b.limits.Memory, float64(got.Memory), 67108864},
		"pids":   {b.limits.Pids, float64(got.Pids), 77},
		"cpus":   {b.limits.CPU, got.CPUs, 0.5},
	} {
		if limit.enforced.Enforced && limit.got != limit.want {
			t.Errorf("%s is %v, want %v", name, limit.got, limit.want)
		}
	}
	if len(got.IO) != 0 {
		t.Errorf("rules for disks: %q", got.IO)
	}
	if _, err := (&Group{host: b.host, path: b.parent + "/nobody"}).Settings(); err == nil {
		t.Error("a group that is not there has settings")
	}
}

func TestNoLimitIsRead(t *testing.T) {
	for text, want := range map[string]int64{"max": NoLimit, "-1": NoLimit, "9223372036854771712": NoLimit, "0": 0, "4096": 4096} {
		if got, err := limitFrom(text); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
	if _, err := limitFrom("many"); err == nil {
		t.Error("a word is a limit")
	}
}
