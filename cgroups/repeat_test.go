package cgroups

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
)

// repeatViews are leafViews, and a host with cpu and cpuacct mounted together.
func repeatViews(t *testing.T) map[string]*Host {
	all := leafViews(t)
	h := realHost(t)
	if cpu, ok := h.v1("cpu"); ok {
		together := *h
		together.trees = []tree{{dir: cpu.dir, controllers: []string{"cpu", "cpuacct", "pids"}}}
		all["v1 with cpu and cpuacct together"] = &together
	}
	return all
}

// limitsIn are the limits of memory and processor time in the files of a leaf.
func limitsIn(l *Leaf) (all []string) {
	for _, file := range [][2]string{{"memory", "memory.limit_in_bytes"}, {"memory", "memory.max"}, {"cpu", "cpu.cfs_quota_us"}, {"cpu", "cpu.max"}} {
		var room [64]byte
		if p, ok := l.placeOf(file[0]); ok {
			if value, err := l.read(p, "/"+file[1], room[:]); err == nil {
				all = append(all, file[1]+" "+strings.TrimSpace(string(value)))
			}
		}
	}
	return all
}

func TestLeavesRepeatTheLimitsOfTheirGroup(t *testing.T) {
	for name, host := range repeatViews(t) {
		t.Run(name, func(t *testing.T) {
			g, _ := newBox(t, nil).divided(host)
			first := LeafLimits{Memory: 96<<20 + 5, CPUs: 0.5}
			l := newLeaf(t, g, "exec-1", LeafOptions{Repeated: first})
			own := newLeaf(t, g, "exec-2", LeafOptions{Repeated: first})
			if err := own.Limit(LeafLimits{Memory: 32 << 20}); ignore(err, errors.ErrUnsupported) != nil {
				t.Fatal(err)
			}
			narrow := strings.Join(limitsIn(own), ", ")
			expect := func(memory, quota string) {
				t.Helper()
				for _, limit := range limitsIn(l) {
					if !strings.HasSuffix(limit, " "+memory) && !strings.HasSuffix(limit, " "+quota) && !strings.HasSuffix(limit, " "+quota+" 100000") {
						t.Errorf("%s, not %s or %s", limit, memory, quota)
					}
				}
			}
			expect("100663296", "50000")
			if _, ok := host.v1("memory"); ok && strings.HasPrefix(name, "v1 without") && len(limitsIn(l)) == 0 {
				t.Error("the leaf has no limit")
			}
			if err := g.RepeatInLeaves(first, LeafLimits{Memory: 128 << 20, CPUs: 1.5}); err != nil {
				t.Fatal(err)
			}
			expect("134217728", "150000")
			if now := strings.Join(limitsIn(own), ", "); strings.Contains(narrow, "33554432") && !strings.Contains(now, "33554432") {
				t.Errorf("the own limits of a leaf were %s and are %s", narrow, now)
			}
		})
	}
}

func TestViewsAreReadOnly(t *testing.T) {
	for name, host := range views(t) {
		t.Run(name, func(t *testing.T) {
			g := newBox(t, nil).group(host)
			all, err := g.Views()
			if err != nil {
				t.Fatal(err)
			}
			defer CloseViews(all)
			want := len(host.visibleTrees())
			if len(all) != want || host.Mode == V2 && want != 1 {
				t.Fatalf("%d views of %d hierarchies", len(all), want)
			}
			for _, v := range all {
				if err := writeFile(v.Mount, "cgroup.procs", "0"); err == nil || !strings.Contains(err.Error(), "read-only") {
					t.Errorf("write through the view %q: %v", v.Name, err)
				}
				if _, err := readFile(v.Mount, "cgroup.procs"); err != nil {
					t.Error(err)
				}
				if host.Mode == V2 != (v.Name == "") || filepath.Base(v.Name) != v.Name && v.Name != "" {
					t.Errorf("name %q", v.Name)
				}
			}
		})
	}
}
