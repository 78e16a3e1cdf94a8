package router

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vishvananda/netns"
)

// Devices at the ends of links. Each link has two ends only, so these hardware addresses are
// the same on all links.
const (
	uplink = "uplink" // the router's end of the link with the host
	inside = "eth0"   // a sandbox's end
)

var (
	outerMAC = net.HardwareAddr{0x02, 0x73, 0x72, 0, 0, 1} // the end that is nearer to the host
	innerMAC = net.HardwareAddr{0x02, 0x73, 0x72, 0, 0, 2}
)

// handleAt opens the routing of a namespace.
func handleAt(namespace *os.File) (*netlink.Handle, error) {
	h, err := netlink.NewHandleAt(netns.NsHandle(namespace.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a network namespace: %w", err)
	}
	return h, nil
}

// connect makes a link: the outer end in the namespace of outerHandle, the inner end in a namespace.
func connect(outer *netlink.Handle, outerName string, inner *os.File, innerName string, mtu int) error {
	attributes := netlink.NewLinkAttrs()
	attributes.Name, attributes.HardwareAddr, attributes.MTU = outerName, outerMAC, mtu
	err := outer.LinkAdd(&netlink.Veth{
		LinkAttrs: attributes, PeerName: innerName, PeerHardwareAddr: innerMAC,
		PeerMTU: uint32(mtu), PeerNamespace: netlink.NsFd(inner.Fd()),
	})
	if err != nil {
		return fmt.Errorf("make the link %s: %w", outerName, err)
	}
	return nil
}

// An end is one end of a link, up, in its namespace.
type end struct {
	handle *netlink.Handle
	name   string
	index  int
}

func openEnd(h *netlink.Handle, name string) (end, error) {
	link, err := h.LinkByName(name)
	if err != nil {
		return end{}, fmt.Errorf("find the device %s: %w", name, err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return end{}, fmt.Errorf("bring the device %s up: %w", name, err)
	}
	return end{h, name, link.Attrs().Index}, nil
}

// addAddress gives the device an address.
func (e end) addAddress(a netip.Addr) error {
	link := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: e.index, Name: e.name}}
	err := e.handle.AddrReplace(link, &netlink.Addr{IPNet: single(a), Flags: unix.IFA_F_NODAD})
	if err != nil {
		return fmt.Errorf("give %s the address %s: %w", e.name, a, err)
	}
	return nil
}

// addNeighbour gives the device the hardware address of a neighbour.
func (e end) addNeighbour(a netip.Addr, mac net.HardwareAddr) error {
	err := e.handle.NeighSet(&netlink.Neigh{
		LinkIndex: e.index, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: mac,
	})
	if err != nil {
		return fmt.Errorf("give %s the neighbour %s: %w", e.name, a, err)
	}
	return nil
}

// errTaken says that there is another route to the destination.
var errTaken = errors.New("another route has this destination")

// reaches adds a route through the device.
func (e end) reaches(destination netip.Prefix, gateway netip.Addr) error {
	err := e.handle.RouteAdd(&netlink.Route{
		LinkIndex: e.index, Dst: network(destination), Gw: gateway.AsSlice(), Flags: int(netlink.FLAG_ONLINK),
	})
	if errors.Is(err, unix.EEXIST) {
		return errTaken
	}
	if err != nil {
		return fmt.Errorf("route %s through %s: %w", destination, e.name, err)
	}
	return nil
}

// leadsTo adds a route to a neighbour. It replaces the route of an earlier sandbox with this address,
// whose link the kernel has not removed yet.
func (e end) leadsTo(neighbour netip.Addr) error {
	err := e.handle.RouteReplace(&netlink.Route{LinkIndex: e.index, Dst: single(neighbour), Scope: netlink.SCOPE_LINK})
	if err != nil {
		return fmt.Errorf("route %s through %s: %w", neighbour, e.name, err)
	}
	return nil
}

// listed calls list again while other changes interrupt the kernel's answer, such as the end of
// other sandboxes.
func listed[T any](list func() ([]T, error)) (all []T, err error) {
	const tries = 100
	for range tries {
		all, err = list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

// routesOf are the routes of a family in one table, or in all.
func routesOf(h *netlink.Handle, family, table int) ([]netlink.Route, error) {
	return listed(func() ([]netlink.Route, error) {
		return h.RouteListFiltered(family, &netlink.Route{Table: table}, netlink.RT_FILTER_TABLE)
	})
}
