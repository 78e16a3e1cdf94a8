package cgroups

import (
	"testing"
)

func TestPidsWithin(t *testing.T) {
	limit := int64(100)
	b := newBox(t, &parentLimits{pids: limit})
	if !b.limits.Pids.Enforced {
		return // there is nothing to read
	}
	for want, within := range map[int64]int64{40: 40, 100: 100, 2000: 100} {
		if got, err := b.host.PidsWithin(b.parent, want); got != within || err != nil {
			t.Errorf("%d within 100: %d, %v", want, got, err)
		}
	}
	if got, err := b.host.PidsWithin(b.parent+"-none", 40); got != 40 || err != nil {
		t.Errorf("without a group: %d, %v", got, err)
	}
}
