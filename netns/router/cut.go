package router

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/netns"
)

// endConnections ends the sandbox's TCP and UDP sockets that have a peer outside, except those that
// stays permits. Their readers and writers get ECONNABORTED at once (SOCK_DESTROY, sock_diag(7)).
// endConnections returns the number of ended sockets.
func endConnections(sandbox *os.File, stays decision) (int, error) {
	count := 0
	err := netns.Do(sandbox, func() error {
		for _, protocol := range []struct {
			number byte
			list   func(family uint8) ([]*netlink.Socket, error)
		}{{unix.IPPROTO_TCP, netlink.SocketDiagTCP}, {unix.IPPROTO_UDP, netlink.SocketDiagUDP}} {
			for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
				sockets, err := protocol.list(family)
				if err != nil {
					return err
				}
				for _, s := range sockets {
					if s.State == netlink.TCP_TIME_WAIT || s.State == netlink.TCP_CLOSE && protocol.number == unix.IPPROTO_TCP {
						continue // no process has it
					}
					local, peer, isOutside := endsOutside(s.ID)
					if !isOutside || stays(protocol.number, local, peer) {
						continue
					}
					isEnded, err := destroy(protocol.number, s)
					if err != nil {
						return err
					}
					if isEnded {
						count++
					}
				}
			}
		}
		return nil
	})
	if err != nil {
		return count, fmt.Errorf("end the sandbox's connections: %w", err)
	}
	return count, nil
}

// A decision says whether the connection of a sandbox's socket may go on.
type decision func(protocol byte, local, peer netip.AddrPort) bool

// noneStays is the decision for a sandbox without a network.
func noneStays(byte, netip.AddrPort, netip.AddrPort) bool { return false }

// endsOutside are the ends of a socket that is connected with the outside.
func endsOutside(s netlink.SocketID) (local, peer netip.AddrPort, is bool) {
	from, _ := netip.AddrFromSlice(s.Source)
	to, ok := netip.AddrFromSlice(s.Destination)
	to = to.Unmap()
	local, peer = netip.AddrPortFrom(from.Unmap(), s.SourcePort), netip.AddrPortFrom(to, s.DestinationPort)
	return local, peer, ok && !to.IsLoopback() && !to.IsUnspecified()
}

// A socketName is inet_diag_req_v2 of linux/inet_diag.h.
type socketName []byte

func (n socketName) Len() int          { return len(n) }
func (n socketName) Serialize() []byte { return n }

func nameOf(protocol byte, s *netlink.Socket) socketName {
	name := []byte{s.Family, protocol, 0, 0}
	name = binary.NativeEndian.AppendUint32(name, ^uint32(0)) // in any state
	name = binary.BigEndian.AppendUint16(name, s.ID.SourcePort)
	name = binary.BigEndian.AppendUint16(name, s.ID.DestinationPort)
	for _, ip := range []net.IP{s.ID.Source, s.ID.Destination} {
		address := make([]byte, net.IPv6len)
		if s.Family == unix.AF_INET {
			copy(address, ip.To4())
		} else {
			copy(address, ip.To16())
		}
		name = append(name, address...)
	}
	name = binary.NativeEndian.AppendUint32(name, s.ID.Interface)
	for _, part := range s.ID.Cookie {
		name = binary.NativeEndian.AppendUint32(name, part)
	}
	return name
}

// destroy returns false for a socket that has ended meanwhile.
func destroy(protocol byte, s *netlink.Socket) (bool, error) {
	request := nl.NewNetlinkRequest(nl.SOCK_DESTROY, unix.NLM_F_ACK)
	request.AddData(nameOf(protocol, s))
	_, err := request.Execute(unix.NETLINK_INET_DIAG, 0)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// forgetConnections removes the tracked connections of the sandbox's address from the namespace,
// except those that stays permits; nil is the caller's namespace. So a later sandbox with this
// address inherits no connection.
func forgetConnections(namespace *os.File, address netip.Addr, stays decision) error {
	return inNamespace(namespace, func() error {
		family := netlink.InetFamily(unix.AF_INET6)
		if address.Is4() {
			family = unix.AF_INET
		}
		if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, flowFilter{address, stays}); err != nil {
			return fmt.Errorf("remove tracked connections of %s: %w", address, err)
		}
		return nil
	})
}

// inNamespace calls f in a network namespace; nil is the caller's.
func inNamespace(namespace *os.File, f func() error) error {
	if namespace == nil {
		return f()
	}
	return netns.Do(namespace, f)
}

// forgetRanges removes the entries of all sandboxes of a router from the caller's connection tracking.
func forgetRanges(a ranges) error {
	for _, f := range a.families() {
		if !a.of(f).IsValid() { // the router was never whole
			continue
		}
		family := netlink.InetFamily(unix.AF_INET)
		if f.bits == ipv6.bits {
			family = unix.AF_INET6
		}
		if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, rangeFilter(a.of(f))); err != nil {
			return fmt.Errorf("remove tracked connections of %s: %w", a.of(f), err)
		}
	}
	return nil
}

// A rangeFilter matches the tracked connections that an address in the range began.
type rangeFilter netip.Prefix

// MatchConntrackFlow implements [netlink.CustomConntrackFilter].
func (r rangeFilter) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	source, ok := netip.AddrFromSlice(flow.Forward.SrcIP)
	return ok && netip.Prefix(r).Contains(source.Unmap())
}
