package router

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// maxNumber is the largest number of a sandbox.
const maxNumber = 1<<rangeHostBits - firstSandbox - 2

const (
	rangeHostBits = 14 // of an IPv4 range
	firstSandbox  = 16 // the place of the sandbox with number 0
	hostPlace     = 1
	routerPlace   = 2
)

// ranges are the ranges of addresses of a router, one for each family.
type ranges struct{ V4, V6 netip.Prefix }

// addressAt is the address of a place in the range of the family.
func (a ranges) addressAt(f family, place uint32) netip.Addr {
	p := a.prefix(f)
	b := p.Addr().AsSlice()
	tail := b[len(b)-4:]
	binary.BigEndian.PutUint32(tail, binary.BigEndian.Uint32(tail)+place)
	address, _ := netip.AddrFromSlice(b) // the length is an address's
	return address
}

func (a ranges) prefix(f family) netip.Prefix {
	if f.bits == ipv4.bits {
		return a.V4
	}
	return a.V6
}

// ofSandbox are the addresses of the sandbox with a number, IPv4 first.
func (a ranges) ofSandbox(number uint32) (all []netip.Addr) {
	for _, f := range a.families() {
		all = append(all, a.addressAt(f, firstSandbox+number))
	}
	return all
}

// numberOf is the number of the sandbox with an address.
func numberOf(a netip.Addr) uint32 {
	b := a.AsSlice()
	place := binary.BigEndian.Uint32(b[len(b)-4:]) & (1<<rangeHostBits - 1)
	return place - firstSandbox
}

// families are the families that the router forwards.
func (a ranges) families() []family {
	if !a.V6.IsValid() {
		return families[:1]
	}
	return families
}

// privateRanges are searched for a free range, in this order.
var privateRanges = prefixes("10.128.0.0/9", "172.16.0.0/12", "100.64.0.0/10", "10.0.0.0/9", "192.168.0.0/16")

var errNoRange = errors.New("the host has a route to each private range of IPv4 addresses; no range is left for sandboxes; choose one with --network-range")

// unusable are addresses that mean something else on each host, or to each sandbox.
var unusable = prefixes("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "198.18.0.0/15", "224.0.0.0/3")

func prefixes(texts ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, t := range texts {
		all = append(all, netip.MustParsePrefix(t))
	}
	return all
}

// ParseRange reads the IPv4 range for [Router].Range. An empty text is no range.
func ParseRange(text string) (p netip.Prefix, err error) {
	if text == "" {
		return p, nil
	}
	p, err = netip.ParsePrefix(text)
	switch {
	case err != nil:
		return p, fmt.Errorf("%q is no address range, such as 10.99.0.0/18", text)
	case !p.Addr().Is4() || p.Bits() > 32-rangeHostBits:
		return p, fmt.Errorf("%s has no room for the addresses of all sandboxes; choose an IPv4 range of /%d or wider", text, 32-rangeHostBits)
	case p != p.Masked():
		return p, fmt.Errorf("%s has bits below its mask; the range is %s", text, p.Masked())
	case slices.ContainsFunc(unusable, p.Overlaps):
		return p, fmt.Errorf("%s overlaps addresses with another meaning %v; choose another range", text, unusable)
	}
	return p, nil
}

// checkRange returns an error if the router has another range than the caller wants.
func (s state) checkRange(wanted netip.Prefix) error {
	if !wanted.IsValid() || wanted.Overlaps(s.Range) && wanted.Bits() <= s.Range.Bits() {
		return nil
	}
	return fmt.Errorf("the sandboxes of this state root have addresses of %s, not of --network-range %s; leave the flag out, or end all sandboxes with a network first",
		s.Range, wanted)
}

// freeRanges calls try with each range without a route of the host, until try returns true. The
// first one depends on the seed. If wanted is valid, the ranges are parts of wanted.
func freeRanges(host *netlink.Handle, wanted netip.Prefix, seed [sha256.Size]byte, try func(netip.Prefix) (bool, error)) error {
	taken, err := routed(host)
	if err != nil {
		return err
	}
	within := privateRanges
	if wanted.IsValid() {
		within = []netip.Prefix{wanted}
	}
	for _, private := range within {
		count := uint32(1) << (32 - rangeHostBits - private.Bits())
		start := binary.BigEndian.Uint32(seed[:4]) % count
		for i := range count {
			p := nthSubnet(private, (start+i)%count)
			if slices.ContainsFunc(taken, p.Overlaps) {
				continue
			}
			if done, err := try(p); done || err != nil {
				return err
			}
		}
	}
	for _, route := range taken {
		if wanted.IsValid() && wanted.Overlaps(route) {
			return fmt.Errorf("--network-range %s: the host has a route to %s; choose another range", wanted, route)
		}
	}
	return errNoRange
}

func nthSubnet(p netip.Prefix, n uint32) netip.Prefix {
	b := p.Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+n<<rangeHostBits)
	return netip.PrefixFrom(netip.AddrFrom4(b), 32-rangeHostBits)
}

// routed are the destinations of the host's IPv4 routes, in all tables. Routes to half of all
// addresses or more are default routes.
func routed(host *netlink.Handle) ([]netip.Prefix, error) {
	routes, err := routesOf(host, netlink.FAMILY_V4, unix.RT_TABLE_UNSPEC)
	if err != nil {
		return nil, fmt.Errorf("list the host's routes: %w", err)
	}
	var taken []netip.Prefix
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		a, ok := netip.AddrFromSlice(r.Dst.IP.To4())
		bits, _ := r.Dst.Mask.Size()
		if ok && bits > 1 {
			taken = append(taken, netip.PrefixFrom(a, bits))
		}
	}
	return taken, nil
}

// localRange is the range of unique local IPv6 addresses (RFC 4193) of the seed.
func localRange(seed [sha256.Size]byte) netip.Prefix {
	b := [16]byte{0: 0xfd}
	copy(b[1:8], seed[:])
	return netip.PrefixFrom(netip.AddrFrom16(b), 64)
}

// network is the prefix in the form of the netlink library.
func network(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func single(a netip.Addr) *net.IPNet { return network(netip.PrefixFrom(a, a.BitLen())) }
