// Package special lists the addresses that a sandbox reaches only where a rule allows it. The
// package does no I/O.
package special

import (
	"net/netip"
	"slices"
)

// IPv4 returns the ranges that IANA's registries of special-purpose addresses (RFC 6890) do not call
// globally reachable, and multicast. 168.63.129.16 is among them: there Azure has a service for the
// host alone, like the metadata service.
func IPv4() []netip.Prefix {
	return prefixes("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16",
		"172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15",
		"198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3")
}

// IPv6 returns the same for IPv6. Translated forms of IPv4 addresses are among them.
func IPv6() []netip.Prefix {
	return prefixes("::/8", "100::/64", "100:0:0:1::/64", "2001::/23", "2001:db8::/32",
		"2002::/16", "3fff::/20", "5f00::/16", "fc00::/7", "fe80::/9", "ff00::/8")
}

// Contains is true for a special address. An IPv4 address in IPv6 form is special, too.
func Contains(a netip.Addr) bool {
	ranges := IPv6()
	if a.Is4() {
		ranges = IPv4()
	}
	a = a.WithZone("")
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}

func prefixes(texts ...string) []netip.Prefix {
	all := make([]netip.Prefix, len(texts))
	for i, t := range texts {
		all[i] = netip.MustParsePrefix(t)
	}
	return all
}
