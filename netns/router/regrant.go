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
func (o *opened) regrant(m Member) (permitted, error) {
	f, err := openFirewall(o.namespace, tableName)
	if err != nil {
		return permitted{}, err
	}
	isOwn := func(link string) bool { return link == m.Link }
	for _, fam := range families {
		for _, name := range grantNames {
			if _, err := f.forget(f.named(grants(name, fam)), isOwn); err != nil {
				return permitted{}, err
			}
		}
	}
	own, err := o.hostAddresses()
	if err != nil {
		return permitted{}, err
	}
	if err := o.canAllow(m.Allow); err != nil {
		return permitted{}, err
	}
	f.addRules(m, own)
	if err := errors.Join(f.flush(), o.openHost()); err != nil {
		return permitted{}, err
	}
	p := permitted{m, own}
	return p, o.forgetRefused(p)
}

// forgetRefused has the router and the host forget the sandbox's connections that are not permitted.
func (o *opened) forgetRefused(p permitted) error {
	a := o.state.addresses()
	for _, fam := range a.families() {
		for _, namespace := range []*os.File{o.namespace, nil} {
			if err := forgetConnections(namespace, a.at(fam, firstSandbox+p.Number), p.reaches); err != nil {
				return err
			}
		}
	}
	return nil
}

// permitted decides about connections as the router's table does.
type permitted struct {
	Member
	host []netip.Addr // the host's own addresses
}

func (p permitted) reaches(protocol byte, peer netip.AddrPort) bool {
	address := peer.Addr().Unmap()
	if peer == resolverAddress {
		return true
	}
	switch {
	case anyCovers(p.Deny, protocol, address, peer.Port()):
		return false
	case slices.Contains(p.host, address):
		return anyCovers(p.opens(p.host), protocol, address, peer.Port())
	}
	return anyCovers(p.Allow, protocol, address, peer.Port()) || !isIn(familyOf(address).special, address)
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

func isIn(prefixes []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// A flowFilter matches the tracked connections of a sandbox's address that are not to stay.
type flowFilter struct {
	sandbox netip.Addr
	stays   func(protocol byte, peer netip.AddrPort) bool
}

// MatchConntrackFlow implements [netlink.CustomConntrackFilter].
func (f flowFilter) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	source, ok := netip.AddrFromSlice(flow.Forward.SrcIP)
	peer, peerOK := netip.AddrFromSlice(flow.Forward.DstIP)
	if !ok || source.Unmap() != f.sandbox {
		return false
	}
	return !peerOK || !f.stays(flow.Forward.Protocol, netip.AddrPortFrom(peer.Unmap(), flow.Forward.DstPort))
}
