package router

import (
	"errors"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// regrant replaces the sandbox's rules in one step, and has the router and the host forget the
// connections that the new rules do not permit. It returns what they permit.
func (o *lockedRouter) regrant(m Member) (permissions, error) {
	f, err := openFirewall(o.namespace, tableName)
	if err != nil {
		return permissions{}, err
	}
	p := permissions{Member: m, ranges: o.state.addresses()}
	isOwn := func(link string) bool { return link == m.Link }
	for _, fam := range families {
		others, err := f.forgetRules(fam, isOwn, nil)
		if err != nil {
			return permissions{}, err
		}
		p.others = append(p.others, others...)
	}
	if p.host, err = o.hostAddresses(); err != nil {
		return permissions{}, err
	}
	if err := o.canAllow(m.Allow); err != nil {
		return permissions{}, err
	}
	f.addRules(m, p.ranges, p.host)
	if err := errors.Join(f.flush(), o.openHost()); err != nil {
		return permissions{}, err
	}
	if p.crossings, err = f.crossings(); err != nil {
		return permissions{}, err
	}
	return p, o.forgetRefused(p)
}

// forgetRefused has the router and the host forget the sandbox's connections that are not permitted.
func (o *lockedRouter) forgetRefused(p permissions) error {
	a := o.state.addresses()
	for _, fam := range a.families() {
		for _, namespace := range []*os.File{o.namespace, nil} {
			if err := forgetConnections(namespace, a.addressAt(fam, firstSandbox+p.Number), p.reaches); err != nil {
				return err
			}
		}
	}
	return nil
}

// permissions decides about connections as the router's table does.
type permissions struct {
	Member
	host   []netip.Addr // the host's own addresses
	others []netip.Addr // of the sandboxes that the earlier rules have opened
	ranges
	crossings
}

func (p permissions) reaches(protocol byte, local, peer netip.AddrPort) bool {
	address := peer.Addr().Unmap()
	if peer == resolverAddress {
		return true
	}
	if of := p.prefix(familyOf(address)); of.IsValid() && of.Contains(address) {
		return p.permit(protocol, local, peer)
	}
	switch {
	case anyCovers(p.Deny, protocol, address, peer.Port()):
		return false
	case slices.Contains(p.host, address):
		return anyCovers(p.hostRules(p.host), protocol, address, peer.Port())
	}
	isSpecial := slices.ContainsFunc(familyOf(address).special, func(some netip.Prefix) bool { return some.Contains(address) })
	return !isSpecial || anyCovers(p.Allow, protocol, address, peer.Port())
}

func anyCovers(rules []spec.AddressRule, protocol byte, a netip.Addr, port uint16) bool {
	return slices.ContainsFunc(rules, func(r spec.AddressRule) bool {
		if !r.Prefix.Contains(a) {
			return false
		}
		if r.Ports == (spec.PortRange{}) {
			return true
		}
		return (protocol == unix.IPPROTO_TCP || protocol == unix.IPPROTO_UDP) && r.Ports.First <= port && port <= r.Ports.Last
	})
}

// A flowFilter matches the tracked connections from and to a sandbox's address that are not to stay.
type flowFilter struct {
	sandbox netip.Addr
	stays   decision
}

// MatchConntrackFlow implements [netlink.CustomConntrackFilter].
func (f flowFilter) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	source, _ := netip.AddrFromSlice(flow.Forward.SrcIP)
	peer, _ := netip.AddrFromSlice(flow.Forward.DstIP)
	local, remote := netip.AddrPortFrom(source.Unmap(), flow.Forward.SrcPort), netip.AddrPortFrom(peer.Unmap(), flow.Forward.DstPort)
	return (local.Addr() == f.sandbox || remote.Addr() == f.sandbox) && !f.stays(flow.Forward.Protocol, local, remote)
}
