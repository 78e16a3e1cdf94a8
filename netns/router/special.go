package router

import "net/netip"

// The addresses that a sandbox reaches only where a rule allows it: those that IANA's registries
// of special-purpose addresses (RFC 6890) do not call globally reachable, and multicast.
// Translated forms of IPv4 addresses are among them, and 168.63.129.16: there Azure has a service for the
// host alone, like the metadata service.
var (
	special4 = prefixes("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16",
		"172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15",
		"198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3")
	special6 = prefixes("::/8", "100::/64", "2001::/23", "2001:db8::/32",
		"2002::/16", "3fff::/20", "5f00::/16", "fc00::/7", "fe80::/9", "ff00::/8")
)

func prefixes(texts ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, t := range texts {
		all = append(all, netip.MustParsePrefix(t))
	}
	return all
}
