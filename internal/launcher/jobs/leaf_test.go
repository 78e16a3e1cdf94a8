package jobs

import (
	"slices"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// On cgroup v1 the disk limits of a group do not bind the groups below it. A leaf from before a limit would let its command past
// the limit.
func TestLeavesFromBeforeALimitAreNotUsed(t *testing.T) {
	enforced := spec.LimitReport{Memory: spec.Enforced, CPU: spec.Enforced, Pids: spec.Enforced}
	before := record.Record{Limits: enforced}
	for name, c := range map[string]struct {
		limits spec.Limits
		report spec.LimitReport
		used   bool
	}{
		"none":              {spec.Limits{}, enforced, true},
		"file size":         {spec.Limits{FileSize: 1}, enforced, true},
		"disk":              {spec.Limits{IOWrite: 1}, enforced, false},
		"pids":              {spec.Limits{Pids: 40}, enforced, false},
		"memory":            {spec.Limits{Memory: 1 << 30}, enforced, false},
		"cpus":              {spec.Limits{CPUs: 2}, enforced, false},
		"not in the kernel": {spec.Limits{Pids: 40, Memory: 1 << 30, CPUs: 2}, spec.LimitReport{}, true},
	} {
		after := record.Record{Limits: c.report, Config: spec.Config{Limits: c.limits}}
		p := &leafPool{box: record.NewSandbox(record.Roots{}, "box", nil, after)}
		p.Spares = []ExecLeaf{{Exec: execNumbered(1), Leaf: &cgroups.Leaf{}, under: termsOf(before)}}
		leaf, ok := p.Reuse(&p.Spares)
		if ok != c.used || ok && leaf.Exec != execNumbered(1) || len(p.used) == 0 != c.used || len(p.Spares) > 0 {
			t.Errorf("%s: used %t, %d to remove", name, ok, len(p.used))
		}
	}
}

// Leaves of ended commands are kept to be used again, up to a bound.
func TestTheLeavesOfEndedCommandsHaveABound(t *testing.T) {
	p := &leafPool{box: record.NewSandbox(record.Roots{}, "box", nil, record.Record{})}
	for i := range MaxEnded + 2 {
		p.recycle(ExecLeaf{Exec: execNumbered(i), Leaf: &cgroups.Leaf{}})
	}
	p.retire(&cgroups.Leaf{})
	if used := p.takeUsed(); len(used) != 3 || len(p.takeUsed()) > 0 {
		t.Errorf("%d leaves to remove", len(used))
	}
	if first, ok := p.Reuse(&p.ended); !ok || first.Exec != execNumbered(0) {
		t.Errorf("the first one to use again is %v, %t", first.Exec, ok)
	}
	if all := p.empty(); len(all) != MaxEnded-1 || slices.Contains(all, nil) || p.hasSpare() {
		t.Errorf("%d leaves are left", len(all))
	}
}
