package router

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A sandbox reaches another sandbox if a rule names an address that the other one has at the time of
// the rule. A range that contains the address does not open it. Each packet and each answer needs the
// rule, so a connection ends with its rule. The rule goes when either sandbox is disconnected, because
// another sandbox can get the address later.

// The sets "peers" have the rules. The sets "near" have each sandbox and its peers, without ports: a
// look there tells quickly that an address has no rules.
const (
	peersName = "peers"
	nearName  = "near"
)

func nearbySet(f family) nftables.Set {
	s := members(f)
	s.Name = nearName + f.suffix
	return s
}

// writePeers writes the rules for packets from one sandbox to another. The quota of the sender is
// charged before, and the quota of the receiver only for packets that a rule allows.
func (f *firewall) writePeers(forward *nftables.Chain, charges meter, fam family, m, denied *nftables.Set) {
	peers := f.set(grants(peersName, fam))
	f.set(nearbySet(fam))
	across := f.chain(nftables.Chain{Name: "across" + fam.suffix})
	f.rule(forward, fam.match(), matchMeta(expr.MetaKeyOIFNAME, expr.CmpOpNeq, interfaceName(uplink)), expressions{jump(across)})

	f.reject(across, isNoMember(fam, m, expr.MetaKeyOIFNAME, fam.dest))
	f.reject(across, inDirection(original), isGranted(fam, denied))
	f.reject(across, inDirection(reply), isAnswer(fam, denied))
	to := expr.MetaKeyOIFNAME
	f.rule(across, inDirection(original), isGranted(fam, peers), connection(expr.CtStateBitNEW), charges.chargeOrJump(to, charges.refuse))
	for _, allowed := range []expressions{
		slices.Concat(inDirection(original), isGranted(fam, peers)),
		slices.Concat(inDirection(reply), connection(known), isAnswer(fam, peers)),
	} {
		f.rule(across, allowed, connection(known), charges.chargeOrJump(to, charges.cut))
		f.rule(across, allowed, verdict(expr.VerdictAccept))
	}
	f.reject(across)
}

// forgetPeers removes the rules of the links that isGone names, and those of other sandboxes that name
// one of the addresses. It returns the addresses of the sandboxes on the other side of these rules.
func (f *firewall) forgetPeers(fam family, isGone func(link string) bool, addresses []netip.Addr) ([]netip.Addr, error) {
	is := func(e nftables.SetElement) bool {
		return isGone(linkOf(e)) || slices.Contains(addresses, addressOf(fam, e))
	}
	gone, err := f.forgetElements(f.existingSet(nearbySet(fam)), is)
	if err != nil || len(gone) == 0 { // then "peers" has none either
		return nil, err
	}
	if _, err := f.forgetElements(f.existingSet(grants(peersName, fam)), is); err != nil {
		return nil, err
	}
	var others []netip.Addr
	var connected map[netip.Addr]string // few changes need it, and it is long
	for _, e := range gone {
		if isGone(linkOf(e)) {
			others = append(others, addressOf(fam, e))
			continue
		}
		if connected == nil {
			if connected, err = f.connected(); err != nil {
				return nil, err
			}
		}
		for a, link := range connected {
			if link == linkOf(e) && familyOf(a).bits == fam.bits {
				others = append(others, a)
			}
		}
	}
	return others, nil
}

// addressOf is the address behind the link in an element's key.
func addressOf(f family, e nftables.SetElement) netip.Addr {
	if len(e.Key) < unix.IFNAMSIZ+f.bits/8 {
		return netip.Addr{}
	}
	a, _ := netip.AddrFromSlice(e.Key[unix.IFNAMSIZ : unix.IFNAMSIZ+f.bits/8])
	return a
}

// connected are the links of the connected sandboxes, by address.
func (f *firewall) connected() (map[netip.Addr]string, error) {
	links := map[netip.Addr]string{}
	for _, fam := range families {
		set := f.existingSet(members(fam))
		elements, err := f.conn.GetSetElements(set)
		if err != nil {
			return nil, fmt.Errorf("nftables: list the set %s: %w", set.Name, err)
		}
		for _, e := range elements {
			links[addressOf(fam, e)] = linkOf(e)
		}
	}
	return links, nil
}

// peers are the rules that name an address of another sandbox.
func (f *firewall) peers(m Member, a ranges) ([]spec.AddressRule, error) {
	named := slices.DeleteFunc(slices.Clone(m.Named), func(r spec.AddressRule) bool {
		address := r.Prefix.Addr()
		return m.Late || !r.Prefix.IsSingleIP() || !a.prefix(familyOf(address)).Contains(address)
	})
	if len(named) == 0 {
		return nil, nil
	}
	connected, err := f.connected()
	return slices.DeleteFunc(named, func(r spec.AddressRule) bool {
		link := connected[r.Prefix.Addr()]
		return link == "" || link == m.Link
	}), err
}

// addPeers adds the elements of the rules for other sandboxes.
func (f *firewall) addPeers(m Member, a ranges) {
	rules, err := f.peers(m, a)
	f.noteError(err)
	for _, r := range disjoint(rules) {
		fam := familyOf(r.Prefix.Addr())
		f.add(f.existingSet(grants(peersName, fam)), grantElements(m.Link, r))
		f.noteError(f.conn.SetAddElements(f.existingSet(nearbySet(fam)), []nftables.SetElement{{Key: memberKey(m.Link, r.Prefix.Addr())}}))
	}
}

// crossings decide about connections between sandboxes as the router's table does.
type crossings struct {
	connected     map[netip.Addr]string
	peers, denied []nftables.SetElement
}

func (f *firewall) crossings() (c crossings, err error) {
	if c.connected, err = f.connected(); err != nil {
		return c, err
	}
	for _, fam := range families {
		for _, s := range []struct {
			name string
			into *[]nftables.SetElement
		}{{peersName, &c.peers}, {"denied", &c.denied}} {
			elements, err := f.conn.GetSetElements(f.existingSet(grants(s.name, fam)))
			if err != nil {
				return c, fmt.Errorf("nftables: list the set %s%s: %w", s.name, fam.suffix, err)
			}
			*s.into = append(*s.into, elements...)
		}
	}
	return c, nil
}

// permit says whether one of two sandboxes may have opened the connection between them.
func (c crossings) permit(protocol byte, local, peer netip.AddrPort) bool {
	return c.permitDirection(protocol, local.Addr(), peer) || c.permitDirection(protocol, peer.Addr(), local)
}

func (c crossings) permitDirection(protocol byte, from netip.Addr, to netip.AddrPort) bool {
	link := c.connected[from]
	if link == "" || c.connected[to.Addr()] == "" {
		return false
	}
	key := grantKey(link, to.Addr(), protocol, to.Port())
	covers := func(e nftables.SetElement) bool { return isBetween(e.Key, key, e.KeyEnd) }
	return slices.ContainsFunc(c.peers, covers) && !slices.ContainsFunc(c.denied, covers)
}

// isBetween compares keys of grants, part by part.
func isBetween(first, key, last []byte) bool {
	if len(first) != len(key) || len(last) != len(key) {
		return false
	}
	port := len(key) - 4
	protocol := port - 4
	for _, p := range [][2]int{{0, unix.IFNAMSIZ}, {unix.IFNAMSIZ, protocol}, {protocol, port}, {port, len(key)}} {
		part := key[p[0]:p[1]]
		if bytes.Compare(part, first[p[0]:p[1]]) < 0 || bytes.Compare(part, last[p[0]:p[1]]) > 0 {
			return false
		}
	}
	return true
}

// endPeers ends the sockets of other sandboxes whose peer has one of the addresses, except those that
// stays permits. The caller must not hold the router's lock.
func (r Router) endPeers(others, addresses []netip.Addr, stays decision) error {
	if r.Sandbox == nil {
		return nil
	}
	numbers := map[uint32]bool{}
	for _, a := range others {
		numbers[numberOf(a)] = true
	}
	var errs []error
	for number := range numbers {
		namespace, err := r.Sandbox(number)
		if errors.Is(err, fs.ErrNotExist) {
			continue // its connections ended with the sandbox
		}
		if err == nil {
			_, err = endConnections(namespace, func(protocol byte, local, peer netip.AddrPort) bool {
				return !slices.Contains(addresses, peer.Addr()) || stays(protocol, local, peer)
			})
			err = errors.Join(err, namespace.Close())
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
