package router

import (
	"cmp"
	"slices"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// disjoint are rules for the same destinations, in an order that the kernel takes: it refuses an
// element whose first or last key lies in an earlier one (nft_set_pipapo.c:nft_pipapo_insert()).
func disjoint(rules []spec.AddressRule) (all []spec.AddressRule) {
	rules = slices.Clone(rules)
	slices.SortStableFunc(rules, func(a, b spec.AddressRule) int {
		return cmp.Or(cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()), cmp.Compare(a.Ports.First, b.Ports.First))
	})
	for _, r := range rules {
		left := []spec.PortRange{r.Ports}
		for _, wider := range all {
			if wider.Prefix.Bits() > r.Prefix.Bits() || !wider.Prefix.Contains(r.Prefix.Addr()) {
				continue
			}
			switch {
			case wider.Ports == spec.PortRange{}:
				left = nil
			case r.Ports != spec.PortRange{}:
				left = without(left, wider.Ports)
			}
		}
		for _, ports := range left {
			all = append(all, spec.AddressRule{Prefix: r.Prefix, Ports: ports})
		}
	}
	return all
}

// without are the ports of the ranges that are not in gone.
func without(ranges []spec.PortRange, gone spec.PortRange) (left []spec.PortRange) {
	for _, r := range ranges {
		if r.First < gone.First {
			left = append(left, spec.PortRange{First: r.First, Last: min(r.Last, gone.First-1)})
		}
		if r.Last > gone.Last {
			left = append(left, spec.PortRange{First: max(r.First, gone.Last+1), Last: r.Last})
		}
	}
	return left
}
