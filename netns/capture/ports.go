package capture

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// merge sorts the ranges and joins those that touch.
func merge(ports []spec.PortRange) ([]spec.PortRange, error) {
	sorted := slices.SortedFunc(slices.Values(ports), func(a, b spec.PortRange) int { return cmp.Compare(a.First, b.First) })
	var merged []spec.PortRange
	for _, r := range sorted {
		if r.First == 0 || r.First > r.Last {
			return nil, fmt.Errorf("invalid ports %d-%d: use 1 to 65535, the lower one first", r.First, r.Last)
		}
		if n := len(merged); n > 0 && int(r.First) <= int(merged[n-1].Last)+1 {
			merged[n-1].Last = max(merged[n-1].Last, r.Last)
			continue
		}
		merged = append(merged, r)
	}
	return merged, nil
}

func contains(ports []spec.PortRange, port uint16) bool {
	return slices.ContainsFunc(ports, func(r spec.PortRange) bool { return r.First <= port && port <= r.Last })
}
