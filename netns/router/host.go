package router

import (
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
)

// mark is the bit of packet marks that the host's table sets on packets of the router. Docker,
// Kubernetes and Tailscale use lower bits. Cilium and Calico can use this bit, too: the mark alone does not
// identify a packet of the router.
const mark = 1 << 27

// writeHost writes the host's table, which is missing, for the router behind the link. a has the ranges of the router's addresses.
func (f *firewall) writeHost(link string, a ranges) {
	f.conn.AddTable(f.table)
	marking := f.filter("mark", nftables.ChainHookPrerouting, nftables.ChainPriorityMangle, nftables.ChainPolicyAccept)
	forward := f.filter("forward", nftables.ChainHookForward, nftables.ChainPriorityFilter, nftables.ChainPolicyAccept)
	input := f.filter("input", nftables.ChainHookInput, nftables.ChainPriorityFilter, nftables.ChainPolicyAccept)
	hide := f.chain(nftables.Chain{
		Name: "hide", Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting,
		Priority: nftables.ChainPriorityNATSource,
	})
	accept, drop := verdict(expr.VerdictAccept), verdict(expr.VerdictDrop)
	f.rule(marking, matchInput(link), setMark())
	if a.V4.IsValid() {
		f.rule(marking, answersTo(ipv4, a.V4), setMark()) // for the filter of reverse paths: see reversePaths
	}
	f.writeGuard(forward)
	f.rule(forward, matchOutput(link), connection(known), accept)
	f.rule(forward, matchOutput(link), drop)
	f.rule(forward, matchInput(link), connection(unknown), drop)
	f.reject(forward, matchInput(link), redirected())
	f.rule(input, matchInput(link), connection(known), accept)
	for _, fam := range families {
		f.rule(input, matchInput(link), isGuest(fam, f.set(guests(fam))), accept)
	}
	f.reject(input, matchInput(link))
	for _, fam := range a.families() {
		f.rule(hide, marked(), addressWithin(fam, fam.source, a.prefix(fam)), expressions{&expr.Masq{}})
	}
}

func setMark() expressions {
	bit := binaryutil.NativeEndian.PutUint32(mark)
	rest := binaryutil.NativeEndian.PutUint32(^uint32(mark))
	return expressions{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: scratchRegister},
		bitwise(rest, bit),
		&expr.Meta{Key: expr.MetaKeyMARK, Register: scratchRegister, SourceRegister: true},
	}
}

// answersTo matches answers of connections that sandboxes have begun.
func answersTo(f family, own netip.Prefix) expressions {
	source := &expr.Ct{Key: expr.CtKeySRC, Register: scratchRegister, Direction: original}
	return slices.Concat(f.match(), inDirection(reply), expressions{source}, f.matchPrefix(own))
}

func marked() expressions {
	return append(expressions{&expr.Meta{Key: expr.MetaKeyMARK, Register: scratchRegister}}, matchAnyBit(mark)...)
}
