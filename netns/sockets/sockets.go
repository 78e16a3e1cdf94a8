// Package sockets ends connected sockets of a network namespace.
package sockets

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A Decision says whether the connection of a socket ends. Addresses of IPv4 have the form of IPv4,
// also for sockets of IPv6.
type Decision func(protocol byte, local, peer netip.AddrPort) bool

// End ends the TCP and UDP sockets of the calling thread's network namespace that are connected and
// that the decision names. Their readers and writers get ECONNABORTED at once (SOCK_DESTROY,
// sock_diag(7)). End returns the number of ended sockets.
func End(ends Decision) (int, error) {
	count := 0
	for _, protocol := range []struct {
		number byte
		list   func(family uint8) ([]*netlink.Socket, error)
	}{{unix.IPPROTO_TCP, netlink.SocketDiagTCP}, {unix.IPPROTO_UDP, netlink.SocketDiagUDP}} {
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			all, err := protocol.list(family)
			if err != nil {
				return count, fmt.Errorf("list sockets: %w", err)
			}
			for _, s := range all {
				if s.State == netlink.TCP_TIME_WAIT || s.State == netlink.TCP_CLOSE && protocol.number == unix.IPPROTO_TCP {
					continue // no process has it
				}
				local, peer := endsOf(s.ID)
				if !peer.Addr().IsValid() || peer.Addr().IsUnspecified() || !ends(protocol.number, local, peer) {
					continue
				}
				isEnded, err := destroy(protocol.number, s)
				if err != nil {
					return count, fmt.Errorf("end a socket: %w", err)
				}
				if isEnded {
					count++
				}
			}
		}
	}
	return count, nil
}

func endsOf(s netlink.SocketID) (local, peer netip.AddrPort) {
	from, _ := netip.AddrFromSlice(s.Source)
	to, _ := netip.AddrFromSlice(s.Destination)
	return netip.AddrPortFrom(from.Unmap(), s.SourcePort), netip.AddrPortFrom(to.Unmap(), s.DestinationPort)
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
