package router

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// attach makes the link, and then the sandbox's elements: without them nothing passes. The link
// can be there already: a disconnected sandbox keeps a silent link.
func (o *lockedRouter) attach(sandbox *os.File, m Member) error {
	silent, err := o.inner.LinkByName(m.Link)
	if isNoDevice(err) {
		silent, err = nil, o.link(sandbox, m.Link)
	}
	if err != nil {
		return err
	}
	if err := disableSolicits(sandbox); err != nil {
		return err
	}
	used, err := o.router.ledger().resume(m.Link, silent)
	if err != nil {
		return err
	}
	within, err := handleAt(sandbox)
	if err != nil {
		return err
	}
	defer within.Close()
	inner, err := openEnd(within, inside)
	if err != nil {
		return err
	}
	outer, err := openEnd(o.inner, m.Link)
	if err != nil {
		return err
	}
	a := o.state.addresses()
	for _, f := range a.families() {
		if err := joinSandbox(outer, inner, f, a.addressAt(f, firstSandbox+m.Number)); err != nil {
			return err
		}
	}
	if m.Rate > 0 {
		for _, e := range []end{outer, inner} {
			if err := e.limitRate(m.Rate, o.state.MTU); err != nil {
				return err
			}
		}
	}
	if m.Quota > 0 {
		if err := addQuota(o.namespace, m.Link, quota{m.Quota, uint64(used.Charged)}); err != nil {
			return err
		}
	}
	return o.grant(m)
}

// link makes the link. The kernel can still have the silent link to an earlier router.
func (o *lockedRouter) link(sandbox *os.File, name string) error {
	err := connect(o.inner, name, sandbox, inside, o.state.MTU)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	if err := removeLink(sandbox, inside); err != nil {
		return err
	}
	return connect(o.inner, name, sandbox, inside, o.state.MTU)
}

// joinSandbox gives both ends the addresses, neighbours and routes of one family.
func joinSandbox(outer, inner end, f family, sandbox netip.Addr) error {
	if err := outer.addNeighbour(sandbox, innerMAC); err != nil {
		return err
	}
	if err := outer.leadsTo(sandbox); err != nil {
		return err
	}
	if err := inner.addAddress(sandbox); err != nil {
		return err
	}
	if err := inner.addNeighbour(f.gateway, outerMAC); err != nil {
		return err
	}
	return inner.reaches(f.all, f.gateway)
}

// grant adds the sandbox's elements. It makes the set of the host's addresses anew.
func (o *lockedRouter) grant(m Member) error {
	f, err := openLasting(o.namespace, tableName)
	if err != nil {
		return err
	}
	defer f.close()
	a := o.state.addresses()
	own, err := o.hostAddresses()
	if err != nil {
		return err
	}
	if err := o.canAllow(m.Allow); err != nil {
		return err
	}
	for _, fam := range families {
		f.refill(hostSet(fam), hostElements(fam, own))
	}
	for _, fam := range a.families() {
		address := a.addressAt(fam, firstSandbox+m.Number)
		// A process that was killed can have left rules for an earlier sandbox with this address.
		if _, err := f.forgetPeers(fam, noLink, []netip.Addr{address}); err != nil {
			return err
		}
		key := memberKey(m.Link, address)
		f.noteError(f.conn.SetAddElements(f.existingSet(members(fam)), []nftables.SetElement{{Key: key}}))
	}
	f.addRules(m, a, own)
	if err := f.flush(); err != nil || len(m.hostRules(own)) == 0 {
		return err
	}
	return o.openHost()
}

func noLink(string) bool { return false }

// addRules adds the elements of the sandbox's rules.
func (f *firewall) addRules(m Member, a ranges, own []netip.Addr) {
	f.addPeers(m, a)
	for _, l := range []struct {
		name  string
		rules []spec.AddressRule
	}{{"allowed", m.Allow}, {"denied", m.Deny}, {openedName, m.hostRules(own)}} {
		elements := map[string][]nftables.SetElement{} // by the family
		for _, r := range disjoint(l.rules) {
			fam := familyOf(r.Prefix.Addr())
			elements[fam.name] = append(elements[fam.name], grantElements(m.Link, r)...)
		}
		for _, fam := range families {
			f.add(f.existingSet(grants(l.name, fam)), elements[fam.name])
		}
	}
}

// existingSet is a set of the table that exists.
func (f *firewall) existingSet(s nftables.Set) *nftables.Set {
	s.Table = f.table
	return &s
}

// canAllow refuses rules that the router cannot honour.
func (o *lockedRouter) canAllow(rules []spec.AddressRule) error {
	for _, r := range rules {
		if r.Prefix.Addr().Is6() && !o.state.Local.IsValid() {
			return fmt.Errorf("allow %s: this host forwards no IPv6 for single devices (needs Linux 6.17, net.ipv6.conf.default.disable_ipv6=0 and an MTU of at least 1280)", r.Prefix)
		}
	}
	return nil
}

// hostAddresses are the host's own addresses.
func (o *lockedRouter) hostAddresses() ([]netip.Addr, error) {
	var own []netip.Addr
	for _, f := range families {
		list, err := listed(func() ([]netlink.Addr, error) { return o.host.AddrList(nil, f.number) })
		if err != nil {
			return nil, fmt.Errorf("list the host's addresses: %w", err)
		}
		for _, a := range list {
			if ip, ok := netip.AddrFromSlice(a.IP); ok {
				own = append(own, ip.Unmap())
			}
		}
	}
	return own, nil
}

// detach removes the sandbox's elements, so no packet passes. If sandbox is not nil, detach also
// notes the traffic.
func (r Router) detach(namespace, sandbox *os.File, link string) (disconnection, error) {
	is := func(l string) bool { return l == link }
	s, err := r.forgetLinks(namespace, is)
	if err == nil && sandbox != nil {
		err = r.ledger().note(namespace, link)
	}
	if err == nil {
		err = forgetQuotas(namespace, is)
	}
	return s, err
}

// silence removes the addresses and routes of the sandbox's end of the link. The link stays, and
// leads nowhere: its removal would take the kernel more than 10 ms. The link ends with the
// sandbox's namespace or with the router.
func silence(sandbox *os.File) error {
	return withLink(sandbox, inside, func(within *netlink.Handle, link netlink.Link) error {
		routes, err := listed(func() ([]netlink.Route, error) { return within.RouteList(link, netlink.FAMILY_ALL) })
		if err != nil {
			return fmt.Errorf("list the sandbox's routes: %w", err)
		}
		for _, r := range routes {
			if err := within.RouteDel(&r); err != nil && !isGone(err, unix.ESRCH) {
				return fmt.Errorf("remove a route of the sandbox: %w", err)
			}
		}
		addresses, err := listed(func() ([]netlink.Addr, error) { return within.AddrList(link, netlink.FAMILY_ALL) })
		if err != nil {
			return fmt.Errorf("list the sandbox's addresses: %w", err)
		}
		for _, a := range addresses {
			if err := within.AddrDel(link, &a); err != nil && !isGone(err, unix.EADDRNOTAVAIL) {
				return fmt.Errorf("remove an address of the sandbox: %w", err)
			}
		}
		return nil
	})
}

// isGone says that a route or an address is gone: alone, or with its device, which the kernel removes
// together with the router.
func isGone(err error, alone unix.Errno) bool {
	return errors.Is(err, alone) || errors.Is(err, unix.ENODEV)
}

// forgetGone removes the links that are not live, and the elements of all links that are gone.
func (r Router) forgetGone(namespace *os.File, isLive func(link string) (bool, error)) error {
	links, err := linkNames(namespace)
	if err != nil {
		return err
	}
	var live []string
	for _, link := range links {
		switch is, err := isLive(link); {
		case err != nil:
			return err
		case is:
			live = append(live, link)
		default:
			if err := removeLink(namespace, link); err != nil {
				return err
			}
		}
	}
	isGone := func(link string) bool { return !slices.Contains(live, link) }
	if _, err := r.forgetLinks(namespace, isGone); err != nil {
		return err
	}
	return forgetQuotas(namespace, isGone)
}

// isUsed says whether a sandbox is connected, or has a quota that a killed process has not noted. The
// router can also have silent links, and links of ended sandboxes that the kernel has not removed yet.
func isUsed(namespace *os.File) (bool, error) {
	f, err := openFirewall(namespace, tableName)
	if err != nil {
		return false, err
	}
	for _, s := range []nftables.Set{members(ipv4), quotas()} { // each sandbox has an IPv4 address
		elements, err := f.conn.GetSetElements(f.existingSet(s))
		if err != nil {
			return false, fmt.Errorf("nftables: list the set %s: %w", s.Name, err)
		}
		if len(elements) > 0 {
			return true, nil
		}
	}
	return false, nil
}

// linkNames are the names of the router's links to sandboxes.
func linkNames(namespace *os.File) ([]string, error) {
	inner, err := handleAt(namespace)
	if err != nil {
		return nil, err
	}
	defer inner.Close()
	links, err := listed(inner.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list the router's devices: %w", err)
	}
	var names []string
	for _, l := range links {
		if name := l.Attrs().Name; l.Type() == "veth" && name != uplink {
			names = append(names, name)
		}
	}
	return names, nil
}

// forgetLinks removes the elements of the links that isGone names, and the rules of other sandboxes for
// them. The router and the host also forget the connections of these links.
func (r Router) forgetLinks(namespace *os.File, isGone func(link string) bool) (s disconnection, err error) {
	f, err := openLasting(namespace, tableName)
	if err != nil {
		return s, err
	}
	defer f.close()
	for _, fam := range families {
		gone, err := f.forget(f.existingSet(members(fam)), isGone)
		if err != nil {
			return s, err
		}
		for _, e := range gone {
			s.Addresses = append(s.Addresses, addressOf(fam, e))
		}
		others, err := f.forgetRules(fam, isGone, s.Addresses)
		if err != nil {
			return s, err
		}
		s.Others = append(s.Others, others...)
	}
	return s, r.severance().begin(namespace, s, f.flush)
}

// forgetRules removes the rules of the links that isGone names, and calls [firewall.forgetPeers].
func (f *firewall) forgetRules(fam family, isGone func(link string) bool, addresses []netip.Addr) ([]netip.Addr, error) {
	for _, name := range grantNames {
		if _, err := f.forget(f.existingSet(grants(name, fam)), isGone); err != nil {
			return nil, err
		}
	}
	return f.forgetPeers(fam, isGone, addresses)
}

func removeLink(namespace *os.File, name string) error {
	return withLink(namespace, name, func(inner *netlink.Handle, link netlink.Link) error {
		if err := deleteLink(inner, link); err != nil {
			return fmt.Errorf("remove the device %s: %w", name, err)
		}
		return nil
	})
}

// withLink calls f with a device of a namespace if the device is there.
func withLink(namespace *os.File, name string, f func(*netlink.Handle, netlink.Link) error) error {
	within, err := handleAt(namespace)
	if err != nil {
		return err
	}
	defer within.Close()
	link, err := within.LinkByName(name)
	if isNoDevice(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return f(within, link)
}

// forget removes the elements of the links that isGone names from the set, and returns them.
func (f *firewall) forget(s *nftables.Set, isGone func(link string) bool) ([]nftables.SetElement, error) {
	return f.forgetElements(s, func(e nftables.SetElement) bool { return isGone(linkOf(e)) })
}

func (f *firewall) forgetElements(s *nftables.Set, isGone func(nftables.SetElement) bool) ([]nftables.SetElement, error) {
	elements, err := f.conn.GetSetElements(s)
	if err != nil {
		return nil, fmt.Errorf("nftables: list the set %s: %w", s.Name, err)
	}
	gone := slices.DeleteFunc(elements, func(e nftables.SetElement) bool { return !isGone(e) })
	for some := range slices.Chunk(gone, maxElements) {
		f.noteError(f.conn.SetDeleteElements(s, some))
	}
	return gone, nil
}

// linkOf is the name at the beginning of an element's key.
func linkOf(e nftables.SetElement) string {
	return unix.ByteSliceToString(e.Key[:min(unix.IFNAMSIZ, len(e.Key))])
}
