package router

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A device is one of the host's through which packets of a network can come in. The routes do not matter:
// they only say where packets go out, and they can be many and change at any time.
type device struct {
	index int
	name  string
	// isUp is false for a device that takes no packets now, and for ports of bridges and the like: the kernel takes
	// their packets as those of the other device.
	isUp bool
	// isUplink says that packets to the internet go out through the device.
	isUplink bool
}

// networkDevices are the devices of all networks of the host, uplinks first. Those that are not up keep their settings.
func networkDevices(host *netlink.Handle) ([]device, error) {
	links, err := listed(host.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list the host's devices: %w", err)
	}
	uplinks, err := uplinkIndexes(host)
	if err != nil {
		return nil, err
	}
	var found, rest []device
	for _, l := range links {
		a := l.Attrs()
		if a.Flags&net.FlagLoopback != 0 || strings.HasPrefix(a.Name, linkPrefix) {
			continue
		}
		isUp := a.Flags&net.FlagUp != 0 && a.MasterIndex == 0
		d := device{a.Index, a.Name, isUp, slices.Contains(uplinks[0], a.Index) || slices.Contains(uplinks[1], a.Index)}
		if d.isUplink {
			found = append(found, d)
		} else {
			rest = append(rest, d)
		}
	}
	return append(found, rest...), nil
}

// internet has addresses in both halves of the addresses of a family, and of the global unicast addresses of IPv6:
// some VPNs have a route to each half.
var internet = [2][]netip.Addr{
	{netip.MustParseAddr("100.0.0.1"), netip.MustParseAddr("200.0.0.1")},
	{netip.MustParseAddr("2600::1"), netip.MustParseAddr("3f00::1")},
}

// uplinkIndexes are the devices by which the host's own packets go to the internet, for IPv4 and for IPv6.
func uplinkIndexes(host *netlink.Handle) (found [2][]int, err error) {
	for i, addresses := range internet {
		for _, a := range addresses {
			routes, err := host.RouteGet(a.AsSlice())
			if isNoRoute(err) {
				continue
			}
			if err != nil {
				return found, fmt.Errorf("find the host's route to %s: %w", a, err)
			}
			for _, r := range routes {
				found[i] = append(found[i], outputs(r)...)
			}
		}
	}
	return found, nil
}

// isNoRoute says that there is no route, or one of the types unreachable, prohibit and blackhole.
func isNoRoute(err error) bool {
	refusals := []unix.Errno{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL, unix.ENODEV, unix.EAFNOSUPPORT}
	return slices.ContainsFunc(refusals, func(e unix.Errno) bool { return errors.Is(err, e) })
}

func outputs(r netlink.Route) []int {
	if len(r.MultiPath) == 0 {
		return []int{r.LinkIndex}
	}
	var all []int
	for _, hop := range r.MultiPath {
		all = append(all, hop.LinkIndex)
	}
	return all
}

// linkMTU is the MTU of the link between the router and the host, in bytes: the smallest MTU of the devices to the
// internet, or that of an Ethernet. The host answers larger packets to other networks, and to a VPN that comes later,
// with ICMP messages. A small MTU of the way of IPv4 does not take IPv6 from a host that has it.
func linkMTU(host *netlink.Handle) (int, error) {
	const ethernet, leastIPv6 = 1500, 1280
	uplinks, err := uplinkIndexes(host)
	if err != nil {
		return 0, err
	}
	mtu, ofIPv6 := 0, 0
	for i, indexes := range uplinks {
		for _, index := range indexes {
			link, err := host.LinkByIndex(index)
			if err != nil {
				return 0, fmt.Errorf("the device of a default route: %w", err)
			}
			m := link.Attrs().MTU
			mtu = smaller(mtu, m)
			if i == 1 {
				ofIPv6 = smaller(ofIPv6, m)
			}
		}
	}
	switch {
	case mtu == 0:
		return ethernet, nil
	case mtu < leastIPv6 && ofIPv6 >= leastIPv6:
		return leastIPv6, nil
	}
	return mtu, nil
}

// smaller is the smaller MTU. 0 is none.
func smaller(a, b int) int {
	if a == 0 || b < a {
		return b
	}
	return a
}
