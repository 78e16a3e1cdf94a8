package capture

import (
	"errors"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A family is IPv4 or IPv6.
type family struct {
	protocol     byte
	number       int
	loopback     netip.Prefix
	own          netip.Addr // of the sandbox: glibc ignores a family with loopback addresses only (AI_ADDRCONFIG)
	listener     netip.Addr // of the transparent listener (TPROXY)
	everything   netip.Prefix
	address      nftables.SetDatatype
	source, dest uint32 // offsets in the network header
	unreachable  byte   // the type of the ICMP message
	icmp         byte
}

var (
	ipv4 = family{
		unix.NFPROTO_IPV4, unix.AF_INET, netip.MustParsePrefix("127.0.0.0/8"),
		netip.MustParseAddr("198.18.0.2"), netip.MustParseAddr("198.18.0.1"), netip.MustParsePrefix("0.0.0.0/0"),
		nftables.TypeIPAddr, 12, 16, 3, unix.IPPROTO_ICMP,
	}
	ipv6 = family{
		unix.NFPROTO_IPV6, unix.AF_INET6, netip.MustParsePrefix("::1/128"),
		netip.MustParseAddr("fd53::2"), netip.MustParseAddr("fd53::1"), netip.MustParsePrefix("::/0"),
		nftables.TypeIP6Addr, 8, 24, 1, unix.IPPROTO_ICMPV6,
	}
)

// anywhere is the address of a socket that listens at all addresses.
func (f family) anywhere() netip.Addr { return f.everything.Addr() }

// isLocal says whether connections to the address stay within the sandbox.
func isLocal(a netip.Addr) bool {
	return ipv4.loopback.Contains(a) || ipv6.loopback.Contains(a) || a == ipv4.own || a == ipv6.own
}

// loopbackIndex is the index of lo in each network namespace (LOOPBACK_IFINDEX).
const loopbackIndex = 1

func (f family) ownAddress() *netlink.Addr {
	return &netlink.Addr{
		LinkIndex: loopbackIndex, IPNet: network(netip.PrefixFrom(f.own, f.own.BitLen())),
		Flags: unix.IFA_F_NODAD, Scope: unix.RT_SCOPE_UNIVERSE,
	}
}

// addAddresses returns the families that the namespace has.
func (in *editor) addAddresses() (families []family, err error) {
	for _, f := range []family{ipv4, ipv6} {
		err := in.routes.AddrReplace(nil, f.ownAddress())
		if f.number == unix.AF_INET6 && isAny(err, withoutIPv6...) {
			continue
		}
		if err != nil {
			return nil, operation("add the address "+f.own.String(), err)
		}
		families = append(families, f)
	}
	return families, nil
}

// withoutIPv6 are the errors of a kernel without IPv6, and of a device without (disable_ipv6).
var withoutIPv6 = []error{unix.EAFNOSUPPORT, unix.EOPNOTSUPP, unix.EACCES}

func (f family) route() *netlink.Route {
	return &netlink.Route{
		LinkIndex: loopbackIndex, Dst: network(f.everything), Src: f.own.AsSlice(), Family: f.number,
		Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: unix.RT_SCOPE_HOST, Protocol: unix.RTPROT_STATIC,
	}
}

func (in *editor) addRoutes(families []family) error {
	for _, f := range families {
		if err := in.routes.RouteReplace(f.route()); err != nil {
			return operation("make all addresses local", err)
		}
	}
	return nil
}

func (in *editor) removeAddresses() error {
	for _, f := range []family{ipv4, ipv6} {
		if err := in.routes.RouteDel(f.route()); err != nil && !isAny(err, append(withoutIPv6, unix.ESRCH)...) {
			return operation("remove the local route", err)
		}
		if err := in.routes.AddrDel(nil, f.ownAddress()); err != nil && !isAny(err, append(withoutIPv6, unix.EADDRNOTAVAIL)...) {
			return operation("remove the address "+f.own.String(), err)
		}
	}
	return nil
}

func network(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func isAny(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(t error) bool { return errors.Is(err, t) })
}
