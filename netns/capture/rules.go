package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/netns"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A rule is a list of expressions. A packet passes on to the next rule at the first expression that does
// not match.
type rule []expr.Any

// Registers: all matches use the first.
const (
	scratch = unix.NFT_REG_1
	second  = unix.NFT_REG_2
)

// Numbers of the sets within a transaction.
const (
	portsID = iota + 1
	own4ID
	own6ID
	listenedID
)

func table() *nftables.Table {
	return &nftables.Table{Name: "sandbox-runtime-capture", Family: nftables.TableFamilyINet}
}

func portsSet() *nftables.Set {
	return &nftables.Set{Table: table(), Name: "ports", ID: portsID, Interval: true, KeyType: nftables.TypeInetService}
}

// ownSet has the own addresses of a family.
func (f family) ownSet() *nftables.Set {
	s := &nftables.Set{Table: table(), Name: "own4", ID: own4ID, Interval: true, KeyType: f.address}
	if f.number == unix.AF_INET6 {
		s.Name, s.ID = "own6", own6ID
	}
	return s
}

func (f family) ownElements() []nftables.SetElement {
	last := f.loopback.Addr().AsSlice()
	for bit := f.loopback.Bits(); bit < f.loopback.Addr().BitLen(); bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	end, _ := netip.AddrFromSlice(last)
	return []nftables.SetElement{
		{Key: f.loopback.Addr().AsSlice()}, {Key: end.Next().AsSlice(), IntervalEnd: true},
		{Key: f.own.AsSlice()}, {Key: f.own.Next().AsSlice(), IntervalEnd: true},
	}
}

// captureWithTPROXY leads the connections to one listener of each family.
func (in *editor) captureWithTPROXY(l *Listeners, families []family, ports []spec.PortRange) error {
	err := netns.Do(in.namespace, func() error {
		return l.listenForStreams(families, func(f family) netip.AddrPort { return netip.AddrPortFrom(f.listener, 0) })
	})
	if err != nil {
		return err
	}
	in.newTable()
	if err := in.filter.AddSet(portsSet(), nil); err != nil {
		return operation("write the ports", err)
	}
	if err := in.addPorts(ports); err != nil {
		return err
	}
	var captures []rule
	for i, f := range families {
		port, err := portOf(l.Streams[i])
		if err != nil {
			return err
		}
		captures = append(captures, f.matchLocal(f.dest, false, accept()), f.capture(port))
	}
	return in.writeRules(families, captures)
}

// newTable removes all earlier rules.
func (in *editor) newTable() {
	in.dropTable()
	in.filter.AddTable(table())
}

func (in *editor) dropTable() {
	in.filter.AddTable(table()) // the removal of a missing table fails
	in.filter.DelTable(table())
}

// writeRules sends the new table with its chain. The captures let packets pass: those to own addresses,
// and those to captured ports. All other packets to foreign addresses are refused. No packet of a family
// that is missing gets to lo.
func (in *editor) writeRules(families []family, captures []rule) error {
	rules := []rule{
		{&expr.Meta{Key: expr.MetaKeyMARK, Register: scratch}, equals(binaryutil.NativeEndian.PutUint32(mark)), accept()},
		isReset(accept()),
	}
	for _, f := range families {
		if err := in.filter.AddSet(f.ownSet(), f.ownElements()); err != nil {
			return operation("write the own addresses", err)
		}
		rules = append(rules, f.isUnreachable(accept()))
		rules = append(rules, reject(f.matchLocal(f.source, true))...)
	}
	rules = append(rules, isDNS(unix.IPPROTO_UDP), isDNS(unix.IPPROTO_TCP))
	rules = append(rules, captures...)
	rules = append(rules, reject(nil)...)
	drop := nftables.ChainPolicyDrop
	chain := in.filter.AddChain(&nftables.Chain{
		Table: table(), Name: "prerouting", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting,
		Priority: nftables.ChainPriorityMangle, Policy: &drop,
	})
	for _, r := range rules {
		in.filter.AddRule(&nftables.Rule{Table: table(), Chain: chain, Exprs: r})
	}
	return in.flush()
}

// writePorts replaces the ports of a table with TPROXY.
func (in *editor) writePorts(ports []spec.PortRange) error {
	in.filter.FlushSet(portsSet())
	if err := in.addPorts(ports); err != nil {
		return err
	}
	return operation("write nftables", in.filter.Flush())
}

// maxRanges is the number of ranges in one message: a list of netlink has at most 64 KiB.
const maxRanges = 512

func (in *editor) addPorts(ports []spec.PortRange) error {
	for some := range slices.Chunk(ports, maxRanges) {
		var elements []nftables.SetElement
		for _, r := range some {
			elements = append(elements, nftables.SetElement{Key: binary.BigEndian.AppendUint16(nil, r.First)})
			if r.Last < 65535 {
				elements = append(elements, nftables.SetElement{Key: binary.BigEndian.AppendUint16(nil, r.Last+1), IntervalEnd: true})
			}
		}
		if err := in.filter.SetAddElements(portsSet(), elements); err != nil {
			return operation("write the ports", err)
		}
	}
	return nil
}

// flush sends all. The kernel takes all or nothing.
func (in *editor) flush() error { return supported(in.filter.Flush()) }

// supported makes errors of a kernel without nftables, or without an expression, wrap
// [errors.ErrUnsupported].
func supported(err error) error {
	if isAny(err, unix.ENOENT, unix.EOPNOTSUPP, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT) {
		return fmt.Errorf("%w: the kernel lacks a part of nftables (modules nf_tables and nft_reject_inet): %w", errors.ErrUnsupported, err)
	}
	return operation("write nftables", err)
}

func operation(name string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func accept() expr.Any { return &expr.Verdict{Kind: expr.VerdictAccept} }

func equals(data []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: scratch, Data: data} }

func hasProtocol(number byte) rule {
	return rule{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: scratch}, equals([]byte{number})}
}

func loadTransport(offset, length uint32) expr.Any {
	return &expr.Payload{DestRegister: scratch, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: length}
}

// isReset matches TCP packets that end a connection. The kernel sends them, also as the answer to a
// refused packet: a socket has to send others first.
func isReset(then ...expr.Any) rule {
	const flags, rst = 13, 0x04 // RFC 9293 section 3.1
	return append(append(hasProtocol(unix.IPPROTO_TCP),
		loadTransport(flags, 1),
		&expr.Bitwise{SourceRegister: scratch, DestRegister: scratch, Len: 1, Mask: []byte{rst}, Xor: []byte{0}},
		equals([]byte{rst})), then...)
}

// isUnreachable matches the kernel's messages about refused packets.
func (f family) isUnreachable(then ...expr.Any) rule {
	return append(append(hasProtocol(f.icmp), loadTransport(0, 1), equals([]byte{f.unreachable})), then...)
}

// matchLocal matches packets of the family with an own address. If foreign is set, matchLocal matches those with
// another address.
func (f family) matchLocal(offset uint32, foreign bool, then ...expr.Any) rule {
	set := f.ownSet()
	return append(rule{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: scratch}, equals([]byte{f.protocol}),
		&expr.Payload{DestRegister: scratch, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: f.address.Bytes},
		&expr.Lookup{SourceRegister: scratch, SetName: set.Name, SetID: set.ID, Invert: foreign},
	}, then...)
}

// isDNS lets queries pass to the DNS sockets.
func isDNS(protocol byte) rule {
	return append(hasProtocol(protocol), loadTransport(2, 2), equals(binary.BigEndian.AppendUint16(nil, dnsPort)), accept())
}

// capture gives TCP packets to an allowed port to the listener, or to the connection that the listener
// has accepted. Without such a socket the packet passes on to the next rule.
func (f family) capture(port uint16) rule {
	set := portsSet()
	return append(append(rule{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: scratch}, equals([]byte{f.protocol})},
		hasProtocol(unix.IPPROTO_TCP)...),
		loadTransport(2, 2),
		&expr.Lookup{SourceRegister: scratch, SetName: set.Name, SetID: set.ID},
		&expr.Immediate{Register: scratch, Data: f.listener.AsSlice()},
		&expr.Immediate{Register: second, Data: binary.BigEndian.AppendUint16(nil, port)},
		&expr.TProxy{Family: f.protocol, TableFamily: unix.NFPROTO_INET, RegAddr: scratch, RegPort: second},
		accept())
}

// reject answers matching TCP packets with a reset and others with "port unreachable".
func reject(when rule) []rule {
	when = when[:len(when):len(when)]
	return []rule{
		append(append(when, hasProtocol(unix.IPPROTO_TCP)...), &expr.Reject{Type: unix.NFT_REJECT_TCP_RST}),
		append(when, &expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}),
	}
}
