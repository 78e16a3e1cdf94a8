package router

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A sandbox reaches an address of the host if a rule names this single address. A range that
// contains the address does not open it. Both tables have such rules: the router's in the sets
// "opened", by the sandbox's device, and the host's in the sets "guests", by the sandbox's address.

const openedName = "opened"

// hostRules are the rules that name an address of the host.
func (m Member) hostRules(own []netip.Addr) (rules []spec.AddressRule) {
	for _, r := range m.Named {
		if r.Prefix.IsSingleIP() && slices.Contains(own, r.Prefix.Addr()) {
			rules = append(rules, r)
		}
	}
	return rules
}

// guests is a set of the host's table: the address of a sandbox, and an address, a protocol and a port
// of the host.
func guests(f family) nftables.Set {
	return nftables.Set{
		Name: "guests" + f.suffix, Concatenation: true, Interval: true,
		KeyType: nftables.MustConcatSetType(f.address, f.address, nftables.TypeInetProto, nftables.TypeInetService),
	}
}

// isGuest matches packets of a sandbox to the host that a rule of the sandbox allows.
func isGuest(f family, s *nftables.Set) expressions {
	words := f.address.Bytes / 4
	destination, protocol := nameRegister+words, nameRegister+2*words
	return append(f.match(),
		f.load(f.source, nameRegister),
		f.load(f.dest, destination),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: protocol},
		loadPort(protocol+1),
		lookupSet(s, false))
}

// guestElement is the element of the host's table for one of the router's table. Both keys end alike.
func guestElement(sandbox netip.Addr, opened nftables.SetElement) nftables.SetElement {
	key := func(of []byte) []byte { return append(sandbox.AsSlice(), of[unix.IFNAMSIZ:]...) }
	return nftables.SetElement{Key: key(opened.Key), KeyEnd: key(opened.KeyEnd)}
}

// openHost makes the elements of the host's table from those of the router's. It keeps no others: also
// none of sandboxes that are gone.
func (o *lockedRouter) openHost() error {
	inner, err := openFirewall(o.namespace, tableName)
	if err != nil {
		return err
	}
	outer, err := openFirewall(nil, o.router.hostSide().table())
	if err != nil {
		return err
	}
	for _, fam := range o.state.addresses().families() {
		wanted, err := inner.guestElements(fam)
		if err != nil {
			return err
		}
		outer.refill(guests(fam), wanted)
	}
	return outer.flush()
}

// guestElements are the elements of the host's table for all sandboxes.
func (f *firewall) guestElements(fam family) (wanted []nftables.SetElement, err error) {
	rules, err := f.conn.GetSetElements(f.existingSet(grants(openedName, fam)))
	if err != nil || len(rules) == 0 {
		return nil, err
	}
	sandboxes, err := f.conn.GetSetElements(f.existingSet(members(fam)))
	if err != nil {
		return nil, err
	}
	for _, r := range rules {
		i := slices.IndexFunc(sandboxes, func(s nftables.SetElement) bool { return linkOf(s) == linkOf(r) })
		if i < 0 {
			continue
		}
		address, ok := netip.AddrFromSlice(sandboxes[i].Key[unix.IFNAMSIZ:])
		if !ok {
			return nil, errors.New("nftables: a sandbox without an address")
		}
		wanted = append(wanted, guestElement(address, r))
	}
	return wanted, nil
}
