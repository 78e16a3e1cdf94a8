package router

import (
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/netns/special"
)

// Registers of 32 bits, in which the parts of a key lie one after another. Names of interfaces
// take four of them (nft_set concatenations).
const (
	nameRegister    = unix.NFT_REG32_00
	addressRegister = nameRegister + 4
	scratchRegister = unix.NFT_REG_1
)

// A family is IPv4 or IPv6, in the parts that expressions need.
type family struct {
	name         string // in /proc/sys/net
	number       int    // AF_INET or AF_INET6
	protocol     byte
	suffix       string // of names of sets
	address      nftables.SetDatatype
	source, dest uint32 // offsets in the network header
	special      []netip.Prefix
	bits         int
	all          netip.Prefix
	// gateway is the address to which a sandbox sends. No device has the address: the neighbour entry alone gives the
	// hardware address.
	gateway netip.Addr
}

var (
	ipv4 = family{
		"ipv4", unix.AF_INET, unix.NFPROTO_IPV4, "4", nftables.TypeIPAddr, 12, 16, special.IPv4(), 32,
		netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr("169.254.1.1"),
	}
	ipv6 = family{
		"ipv6", unix.AF_INET6, unix.NFPROTO_IPV6, "6", nftables.TypeIP6Addr, 8, 24, special.IPv6(), 128,
		netip.MustParsePrefix("::/0"), netip.MustParseAddr("fe80::1"),
	}
	families = []family{ipv4, ipv6}
)

func familyOf(a netip.Addr) family {
	if a.Is4() {
		return ipv4
	}
	return ipv6
}

type expressions []expr.Any

// compareScratch compares the scratch register.
func compareScratch(op expr.CmpOp, data []byte) expr.Any {
	return &expr.Cmp{Op: op, Register: scratchRegister, Data: data}
}

// bitwise keeps the bits of the mask in the scratch register, and turns those of xor.
func bitwise(mask, xor []byte) expr.Any {
	return &expr.Bitwise{
		SourceRegister: scratchRegister, DestRegister: scratchRegister, Len: uint32(len(mask)), Mask: mask, Xor: xor,
	}
}

// matchMeta compares a fact about a packet that is not in the packet.
func matchMeta(key expr.MetaKey, op expr.CmpOp, data []byte) expressions {
	return expressions{&expr.Meta{Key: key, Register: scratchRegister}, compareScratch(op, data)}
}

// match matches packets of the family.
func (f family) match() expressions {
	return matchMeta(expr.MetaKeyNFPROTO, expr.CmpOpEq, []byte{f.protocol})
}

// load puts an address of the network header into a register.
func (f family) load(offset, register uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: f.address.Bytes}
}

// matchInput matches packets that come in through the interface.
func matchInput(name string) expressions {
	return matchMeta(expr.MetaKeyIIFNAME, expr.CmpOpEq, interfaceName(name))
}

// matchOutput matches packets that go out through the interface.
func matchOutput(name string) expressions {
	return matchMeta(expr.MetaKeyOIFNAME, expr.CmpOpEq, interfaceName(name))
}

// The directions of a connection (enum ip_conntrack_dir).
const (
	original = 0
	reply    = 1
)

// inDirection matches packets in one direction of their connection.
func inDirection(direction byte) expressions {
	return expressions{&expr.Ct{Key: expr.CtKeyDIRECTION, Register: scratchRegister}, compareScratch(expr.CmpOpEq, []byte{direction})}
}

func interfaceName(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}

// lookupSet matches packets with the key that the registers from nameRegister on hold.
func lookupSet(s *nftables.Set, invert bool) expr.Any {
	return &expr.Lookup{SourceRegister: nameRegister, SetName: s.Name, SetID: s.ID, Invert: invert}
}

// matchAnyBit matches if the scratch register has any of the bits.
func matchAnyBit(bits uint32) expressions {
	return expressions{
		bitwise(binaryutil.NativeEndian.PutUint32(bits), make([]byte, 4)),
		compareScratch(expr.CmpOpNeq, make([]byte, 4)),
	}
}

// connection matches packets by the state of their connection.
func connection(states uint32) expressions {
	return append(expressions{&expr.Ct{Key: expr.CtKeySTATE, Register: scratchRegister}}, matchAnyBit(states)...)
}

const (
	known = expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED
	// unknown are packets without a connection, such as those with wrong checksums, and messages of
	// neighbour discovery. The host would send them on with the sandbox's own address.
	unknown = expr.CtStateBitINVALID | expr.CtStateBitUNTRACKED
	// related are messages about a connection, such as ICMP errors. It can be another sandbox's: the sender names it.
	related = expr.CtStateBitRELATED
)

// redirected matches the first packet of a connection for which the host has chosen another
// destination than the sandbox (DNAT).
func redirected() expressions {
	const destination = 1 << 5 // IPS_DST_NAT
	status := append(connection(expr.CtStateBitNEW), &expr.Ct{Key: expr.CtKeySTATUS, Register: scratchRegister})
	return append(status, matchAnyBit(destination)...)
}

func verdict(kind expr.VerdictKind) expressions { return expressions{&expr.Verdict{Kind: kind}} }

// jump leads packets to a chain.
func jump(to *nftables.Chain) expr.Any { return &expr.Verdict{Kind: expr.VerdictJump, Chain: to.Name} }

// matchProtocol matches packets of TCP or UDP.
func matchProtocol(number byte) expressions {
	return matchMeta(expr.MetaKeyL4PROTO, expr.CmpOpEq, []byte{number})
}

// matchPrefix matches if the scratch register has an address within the prefix.
func (f family) matchPrefix(p netip.Prefix) expressions {
	return expressions{
		bitwise(net.CIDRMask(p.Bits(), f.bits), make([]byte, f.address.Bytes)),
		compareScratch(expr.CmpOpEq, p.Addr().AsSlice()),
	}
}
