package router

import (
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
)

// The guard keeps the host from becoming a router between its networks. It drops packets that come in through a
// device whose forwarding the routers have switched on, unless they go to a router.

// guarded is the set of these devices.
func guarded(f family) nftables.Set {
	return nftables.Set{Name: "guarded" + f.suffix, KeyType: nftables.TypeIFName, KeyByteOrder: binaryutil.NativeEndian}
}

func (f *firewall) writeGuard(forward *nftables.Chain) {
	for _, fam := range families {
		set := f.set(guarded(fam))
		f.rule(forward, fam.match(), expressions{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: nameRegister}, lookupSet(set, false)},
			matchMeta(expr.MetaKeyOIFNAME, expr.CmpOpNeq, []byte(linkPrefix)),
			verdict(expr.VerdictDrop))
	}
}

// hasGuard says whether the table has the guard.
func (f *firewall) hasGuard() (bool, error) {
	sets, err := f.conn.GetSets(f.table)
	if err != nil {
		return false, fmt.Errorf("nftables: list the sets of %s: %w", f.table.Name, err)
	}
	return slices.ContainsFunc(sets, func(s *nftables.Set) bool { return s.Name == guarded(ipv6).Name }), nil
}

// guard guards the devices of the state. A program that has switched all devices on since then wants the host to be a
// router: only devices that were off in spite of that stay guarded.
func (o *lockedRouter) guard(devices []device) error {
	f, err := openLasting(nil, o.router.hostSide().table())
	if err != nil {
		return err
	}
	defer f.close()
	for _, fam := range families {
		wanted, err := o.guardedNames(fam, devices)
		if err != nil {
			return err
		}
		if err := f.refreshSet(guarded(fam), nameElements(wanted)); err != nil {
			return err
		}
	}
	return f.flush()
}

func (o *lockedRouter) guardedNames(fam family, devices []device) (names []string, err error) {
	always, err := forwardsAll(fam.name)
	if err != nil || always {
		return nil, err
	}
	allOff, err := (setting{fam.name, "all"}).isOff()
	if err != nil {
		return nil, err
	}
	for _, d := range devices {
		if o.state.has(d, fam) && (allOff || o.state.isException(d, fam)) {
			names = append(names, d.name)
		}
	}
	return names, nil
}

func nameElements(names []string) (elements []nftables.SetElement) {
	for _, name := range names {
		elements = append(elements, nftables.SetElement{Key: interfaceName(name)})
	}
	return elements
}
