package rules

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/sandbox-runtime/sandbox-runtime/netns/special"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// SuggestFor is Suggest for the allowed events of a run. The events come from a sandbox, so a person must read
// the rules before they are used.
func SuggestFor(events []spec.NetworkEvent) []string {
	return Suggest(func(yield func(Use) bool) {
		for _, e := range events {
			if e.Decision != spec.NetworkAllowed {
				continue
			}
			address, _ := netip.ParseAddr(e.Address) // an event without an address has the zero one
			if !yield(Use{Name: e.Name, Address: address, Port: e.Port}) {
				return
			}
		}
	})
}

// A Use is one allowed connection.
type Use struct {
	// Name is empty for a connection to an address.
	Name string
	// Address is the server's. It may be invalid if there is a name.
	Address netip.Addr
	Port    uint16
}

// Suggest returns the fewest texts of --allow that allow the uses, sorted. Each name and each address has
// rules of its own: no suffix and no range is guessed. A name that leads to an address that is not public
// needs a rule for the address, too. Suggest leaves out each use that no rule can allow.
func Suggest(uses iter.Seq[Use]) []string {
	texts := map[string]bool{}
	for u := range uses {
		if u.Port == 0 {
			continue
		}
		if name, err := parseName(u.Name); err == nil && name == u.Name {
			texts[nameRule(u.Name, u.Port, false)] = true
		} else if u.Name != "" {
			continue
		}
		if (u.Name == "" || special.Contains(u.Address)) && canAllow(u.Address) {
			texts[addressRule(u.Address, u.Port)] = true
		}
	}
	return slices.Sorted(maps.Keys(texts))
}

// canAllow says whether a rule for the address can have an effect.
func canAllow(a netip.Addr) bool {
	return a.IsValid() && !a.Is4In6() && a.Zone() == "" && useless(netip.PrefixFrom(a, a.BitLen())) == ""
}

func addressRule(a netip.Addr, port uint16) string {
	if port == 80 || port == 443 {
		return a.String()
	}
	return netip.AddrPortFrom(a, port).String()
}
