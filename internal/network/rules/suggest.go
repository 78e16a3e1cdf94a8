package rules

import (
	"net/netip"
	"slices"

	"github.com/sandbox-runtime/sandbox-runtime/netns/special"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Suggest returns the fewest texts of --allow that allow the allowed events of a run and no other port, sorted. Each name
// and each address has rules of its own: no suffix and no range of addresses is guessed. A name that leads to an address
// that is not public needs a rule for the address, too. Suggest leaves out each event that no rule can allow. The events
// come from a sandbox, so a person must read the rules before they are used.
func Suggest(events []spec.NetworkEvent) []string {
	ports := map[host][]spec.PortRange{}
	for _, e := range events {
		if e.Decision != spec.NetworkAllowed || e.Port == 0 {
			continue
		}
		port := spec.PortRange{First: e.Port, Last: e.Port}
		if name, err := parseName(e.Name); err == nil && name == e.Name {
			h := host{name: e.Name}
			ports[h] = append(ports[h], port)
		} else if e.Name != "" {
			continue
		}
		address, _ := netip.ParseAddr(e.Address) // an event without an address has the zero one
		if (e.Name == "" || special.Contains(address)) && canAllow(address) {
			h := host{address: address}
			ports[h] = append(ports[h], port)
		}
	}
	var texts []string
	for h, all := range ports {
		texts = append(texts, h.rules(all)...)
	}
	slices.Sort(texts)
	return texts
}

// canAllow says whether a rule for the address can have an effect.
func canAllow(a netip.Addr) bool {
	return a.IsValid() && !a.Is4In6() && a.Zone() == "" && useless(netip.PrefixFrom(a, a.BitLen())) == ""
}

// A host is a name or an address.
type host struct {
	name    string
	address netip.Addr
}

// rules are the fewest rules for the ports. A rule without ports stands for 80 and 443.
func (h host) rules(ports []spec.PortRange) []string {
	r := Rule{name: h.name}
	if h.address.IsValid() {
		r.prefix = netip.PrefixFrom(h.address, h.address.BitLen())
	}
	var texts []string
	is := func(port uint16) func(spec.PortRange) bool {
		return func(p spec.PortRange) bool { return p.First == port }
	}
	if slices.ContainsFunc(ports, is(80)) && slices.ContainsFunc(ports, is(443)) {
		texts = append(texts, r.text())
		ports = slices.DeleteFunc(slices.DeleteFunc(ports, is(80)), is(443))
	}
	for _, p := range merged(ports) {
		r.ports = p
		texts = append(texts, r.text())
	}
	return texts
}
