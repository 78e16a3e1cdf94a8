package router

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// A packet is an IP packet that a test makes byte by byte.
type packet struct {
	from, to string
	protocol byte   // of the payload; in IPv6 the next header
	id       uint16 // of fragments
	fragment uint16 // flags and offset, IPv4
	options  []byte // IPv4
	payload  []byte
}

const (
	moreFragments = 0x2000
	otherProtocol = 253 // for experiments (RFC 3692)
	shortProtocol = 254 // of packets that are too short for a marker
)

// frame is the packet as a sandbox sends it to the router.
func (p packet) frame() []byte {
	from, to := netip.MustParseAddr(p.from), netip.MustParseAddr(p.to)
	if from.Is6() {
		header := binary.BigEndian.AppendUint16([]byte{0x60, 0, 0, 0}, uint16(len(p.payload)))
		header = append(header, p.protocol, 64)
		header = slices.Concat(header, from.AsSlice(), to.AsSlice())
		return ethernet(outerMAC, unix.ETH_P_IPV6, header, p.payload)
	}
	length := 20 + len(p.options)
	header := []byte{0x40 | byte(length/4), 0}
	header = binary.BigEndian.AppendUint16(header, uint16(length+len(p.payload)))
	header = binary.BigEndian.AppendUint16(header, p.id)
	header = binary.BigEndian.AppendUint16(header, p.fragment)
	header = append(header, 64, p.protocol, 0, 0)
	header = slices.Concat(header, from.AsSlice(), to.AsSlice(), p.options)
	binary.BigEndian.PutUint16(header[10:], checksum(header))
	return ethernet(outerMAC, unix.ETH_P_IP, header, p.payload)
}

func ethernet(to []byte, kind uint16, parts ...[]byte) []byte {
	return slices.Concat(to, innerMAC, binary.BigEndian.AppendUint16(nil, kind), slices.Concat(parts...))
}

// checksum is that of RFC 1071.
func checksum(parts ...[]byte) uint16 {
	b := slices.Concat(parts...)
	if len(b)%2 == 1 {
		b = append(b, 0)
	}
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// pseudo is the part of the network header that checksums include.
func pseudo(from, to string, protocol byte, length int) []byte {
	return slices.Concat(netip.MustParseAddr(from).AsSlice(), netip.MustParseAddr(to).AsSlice(),
		binary.BigEndian.AppendUint16([]byte{0, protocol}, uint16(length)))
}

// udpPacket is a packet from port 4000.
func udpPacket(from, to string, port uint16, data string) packet {
	b := binary.BigEndian.AppendUint16(nil, 4000)
	b = binary.BigEndian.AppendUint16(b, port)
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(data)))
	b = append(append(b, 0, 0), data...)
	binary.BigEndian.PutUint16(b[6:], checksum(pseudo(from, to, unix.IPPROTO_UDP, len(b)), b))
	return packet{from: from, to: to, protocol: unix.IPPROTO_UDP, payload: b}
}

const ack, syn = 0x10, 0x02

// segment is a TCP segment from port 4000.
func segment(from, to string, port uint16, flags byte, data string) packet {
	b := binary.BigEndian.AppendUint16(nil, 4000)
	b = binary.BigEndian.AppendUint16(b, port)
	b = append(b, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 0x20, 0, 0, 0, 0, 0)
	b = append(b, data...)
	binary.BigEndian.PutUint16(b[16:], checksum(pseudo(from, to, unix.IPPROTO_TCP, len(b)), b))
	return packet{from: from, to: to, protocol: unix.IPPROTO_TCP, payload: b}
}

// icmpPacket is an ICMP message of the family of the addresses.
func icmpPacket(from, to string, kind byte, rest []byte) packet {
	b := append([]byte{kind, 0, 0, 0}, rest...)
	if netip.MustParseAddr(from).Is4() {
		binary.BigEndian.PutUint16(b[2:], checksum(b))
		return packet{from: from, to: to, protocol: unix.IPPROTO_ICMP, payload: b}
	}
	binary.BigEndian.PutUint16(b[2:], checksum(pseudo(from, to, unix.IPPROTO_ICMPV6, len(b)), b))
	return packet{from: from, to: to, protocol: unix.IPPROTO_ICMPV6, payload: b}
}

// quotedPacket is the part of an ICMP error that shows the packet.
func quotedPacket(p packet, rest ...byte) []byte {
	return slices.Concat(rest, p.frame()[len(ethernet(outerMAC, 0)):])
}

// behind puts an extension header of IPv6 in front of the payload.
func (p packet) behind(kind byte, header ...byte) packet {
	p.payload = slices.Concat([]byte{p.protocol}, header, p.payload)
	p.protocol = kind
	return p
}

// Extension headers of IPv6, without the number of the next header, and options of IPv4.
var (
	padding   = []byte{0, 1, 4, 0, 0, 0, 0}                                                      // of hop-by-hop and destination options
	routing   = append([]byte{2, 2, 1, 0, 0, 0, 0}, netip.MustParseAddr("fd00::9").AsSlice()...) // one more stop
	atomic    = []byte{0, 0, 0, 0, 0, 0, 7}                                                      // fragment header of an only fragment
	authentic = []byte{1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1}                                          // authentication header

	looseRoute = []byte{131, 7, 4, 10, 0, 0, 9, 0} // by 10.0.0.9
	noOptions  = []byte{1, 1, 1, 1, 1, 1, 1, 0}
)

// split is the packet in two fragments. The first one has the first bytes of the payload.
func (p packet) split(first int) []packet {
	one, two := p, p
	if netip.MustParseAddr(p.from).Is6() {
		one.payload, two.payload = p.payload[:first], p.payload[first:]
		return []packet{
			one.behind(unix.IPPROTO_FRAGMENT, 0, 0, 1, 0, 0, 0, byte(p.id)),
			two.behind(unix.IPPROTO_FRAGMENT, 0, byte(first>>8), byte(first), 0, 0, 0, byte(p.id)),
		}
	}
	one.payload, one.fragment = p.payload[:first], moreFragments
	two.payload, two.fragment = p.payload[first:], uint16(first/8)
	return []packet{one, two}
}
