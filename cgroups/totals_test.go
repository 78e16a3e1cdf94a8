package cgroups

import (
	"errors"
	"testing"
)

// Totals are set together, or not at all.
func TestTotalsAreSetTogether(t *testing.T) {
	b := newBox(t, nil)
	if !b.limits.Memory.Enforced || !b.limits.CPU.Enforced {
		return // there is nothing to set: TestTotalsOfAHostWithoutControllers
	}
	g := b.group(nil)
	if err := g.LimitTotals(Totals{CPUs: 0.5, Memory: 64 << 20}); err != nil {
		t.Fatal(err)
	}
	check := func(when string) {
		t.Helper()
		got, err := g.Settings()
		if err != nil || got.CPUs != 0.5 || got.Memory != 64<<20 {
			t.Errorf("%s: %+v, %v", when, got, err)
		}
	}
	check("set")
	next := Totals{CPUs: 2, Memory: 128 << 20}.settings(b.host.Mode)
	next[len(next)-1].value = "junk"
	if err := g.files().setAll(next); err == nil {
		t.Error("junk was taken for a limit")
	}
	check("after an error")
	if err := g.LimitTotals(Totals{}); err != nil {
		t.Error(err)
	}
	check("after no limits")
}

func TestTotalsOfAHostWithoutControllers(t *testing.T) {
	g := &Group{host: &Host{Mode: V1}, path: "/none"}
	if err := g.LimitTotals(Totals{CPUs: 1}); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
}
