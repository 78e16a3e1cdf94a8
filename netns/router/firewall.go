package router

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// tableName is the name of the router's table. The host's table has the hash of the state root
// behind it.
const tableName = "sandbox-runtime"

// A firewall is an nftables table that is being written. Its first error is kept.
type firewall struct {
	conn  *nftables.Conn
	table *nftables.Table
	err   error
}

// openFirewall opens a table of a network namespace; nil is the caller's.
func openFirewall(namespace *os.File, table string, options ...nftables.ConnOption) (*firewall, error) {
	if namespace != nil {
		options = append(options, nftables.WithNetNSFd(int(namespace.Fd())))
	}
	conn, err := nftables.New(options...)
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	return &firewall{conn: conn, table: &nftables.Table{Name: table, Family: nftables.TableFamilyINet}}, nil
}

// openLasting opens a table for several calls, which share one socket. The caller must close it.
func openLasting(namespace *os.File, table string) (*firewall, error) {
	return openFirewall(namespace, table, nftables.AsLasting())
}

func (f *firewall) close() { _ = f.conn.CloseLasting() }

// flush sends all that was added. The kernel takes all of it or nothing.
func (f *firewall) flush() error {
	if f.err != nil {
		return fmt.Errorf("nftables: %w", f.err)
	}
	if err := f.conn.Flush(); err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	return nil
}

func (f *firewall) noteError(err error) {
	if f.err == nil {
		f.err = err
	}
}

// maxElements is the number of elements in one message: a list of netlink has at most 64 KiB, and the library
// cuts a longer one without an error. An element has up to 130 bytes.
const maxElements = 400

func (f *firewall) add(s *nftables.Set, elements []nftables.SetElement) {
	for some := range slices.Chunk(elements, maxElements) {
		f.noteError(f.conn.SetAddElements(s, some))
	}
}

// refill replaces all elements of a set.
func (f *firewall) refill(s nftables.Set, elements []nftables.SetElement) {
	set := f.existingSet(s)
	f.conn.FlushSet(set)
	f.add(set, elements)
}

// refreshSet is refill for a set that can have these elements already.
func (f *firewall) refreshSet(s nftables.Set, wanted []nftables.SetElement) error {
	present, err := f.conn.GetSetElements(f.existingSet(s))
	if err != nil {
		return fmt.Errorf("nftables: list the set %s: %w", s.Name, err)
	}
	if !maps.Equal(keysOf(present), keysOf(wanted)) {
		f.refill(s, wanted)
	}
	return nil
}

func keysOf(elements []nftables.SetElement) map[string]bool {
	keys := map[string]bool{}
	for _, e := range elements {
		keys[string(e.Key)] = true
	}
	return keys
}

func (f *firewall) set(s nftables.Set, elements ...nftables.SetElement) *nftables.Set {
	s.Table = f.table
	f.noteError(f.conn.AddSet(&s, elements))
	return &s
}

func (f *firewall) chain(c nftables.Chain) *nftables.Chain {
	c.Table = f.table
	return f.conn.AddChain(&c)
}

// filter adds a chain that the kernel calls at a hook. The policy is for packets that no rule decides.
func (f *firewall) filter(name string, hook *nftables.ChainHook, priority *nftables.ChainPriority, policy nftables.ChainPolicy) *nftables.Chain {
	return f.chain(nftables.Chain{Name: name, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: priority, Policy: &policy})
}

func (f *firewall) rule(c *nftables.Chain, parts ...expressions) {
	f.conn.AddRule(&nftables.Rule{Table: f.table, Chain: c, Exprs: slices.Concat(parts...)})
}

// reject answers TCP with a reset and all else with an ICMP message: programs learn at once of the refusal.
func (f *firewall) reject(c *nftables.Chain, when ...expressions) {
	reset := expressions{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}
	prohibited := expressions{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED}}
	f.rule(c, append(when[:len(when):len(when)], matchProtocol(unix.IPPROTO_TCP), reset)...)
	f.rule(c, append(when[:len(when):len(when)], prohibited)...)
}

// members is the set of sandboxes: the interface and the address of each.
func members(f family) nftables.Set {
	return nftables.Set{
		Name: "members" + f.suffix, Concatenation: true,
		KeyType: nftables.MustConcatSetType(nftables.TypeIFName, f.address),
	}
}

func memberKey(name string, a netip.Addr) []byte { return append(interfaceName(name), a.AsSlice()...) }

// grants is a set of destinations of sandboxes, with one of the names of grantNames: the interface,
// the address, the protocol and the port.
func grants(name string, f family) nftables.Set {
	return nftables.Set{
		Name: name + f.suffix, Concatenation: true, Interval: true,
		KeyType: nftables.MustConcatSetType(nftables.TypeIFName, f.address, nftables.TypeInetProto, nftables.TypeInetService),
	}
}

var grantNames = []string{"allowed", "denied", openedName}

// grantElements are the elements of grants that stand for a rule of a sandbox.
func grantElements(name string, r spec.AddressRule) []nftables.SetElement {
	first, last := r.Prefix.Addr(), lastAddr(r.Prefix)
	element := func(firstProtocol, lastProtocol byte, ports spec.PortRange) nftables.SetElement {
		return nftables.SetElement{
			Key:    grantKey(name, first, firstProtocol, ports.First),
			KeyEnd: grantKey(name, last, lastProtocol, ports.Last),
		}
	}
	if r.Ports == (spec.PortRange{}) {
		return []nftables.SetElement{element(0, 255, spec.PortRange{Last: 65535})}
	}
	return []nftables.SetElement{
		element(unix.IPPROTO_TCP, unix.IPPROTO_TCP, r.Ports),
		element(unix.IPPROTO_UDP, unix.IPPROTO_UDP, r.Ports),
	}
}

func grantKey(name string, a netip.Addr, protocol byte, port uint16) []byte {
	key := memberKey(name, a)
	key = append(key, protocol, 0, 0, 0)
	key = binary.BigEndian.AppendUint16(key, port)
	return append(key, 0, 0)
}

func lastAddr(p netip.Prefix) netip.Addr {
	last := p.Addr().AsSlice()
	for bit := p.Bits(); bit < len(last)*8; bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	a, _ := netip.AddrFromSlice(last) // a slice of an address has an address's length
	return a
}

// isNoMember matches packets that no sandbox can have, by interface and source or destination.
func isNoMember(f family, s *nftables.Set, key expr.MetaKey, offset uint32) expressions {
	return append(f.match(),
		&expr.Meta{Key: key, Register: nameRegister},
		f.load(offset, addressRegister),
		lookupSet(s, true))
}

// isGranted matches packets of a sandbox whose destination is in the set.
func isGranted(f family, s *nftables.Set) expressions {
	return isInGrants(f, s, expr.MetaKeyIIFNAME, f.dest, destinationPort)
}

// isAnswer matches packets to a sandbox whose source is in the set.
func isAnswer(f family, s *nftables.Set) expressions {
	return isInGrants(f, s, expr.MetaKeyOIFNAME, f.source, sourcePort)
}

func isInGrants(f family, s *nftables.Set, key expr.MetaKey, offset, port uint32) expressions {
	protocol := addressRegister + f.address.Bytes/4
	return append(f.match(),
		&expr.Meta{Key: key, Register: nameRegister},
		f.load(offset, addressRegister),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: protocol},
		loadTransport(protocol+1, port),
		lookupSet(s, false))
}

// hasPorts matches packets that isGranted can judge: a shorter packet matches no set, also not the
// set of denied destinations.
func hasPorts() expressions { return expressions{loadPort(scratchRegister)} }

// Places in the headers of TCP and UDP.
const (
	sourcePort      = 0
	destinationPort = 2
)

// loadPort loads the destination port, or these bytes of another protocol.
func loadPort(register uint32) expr.Any { return loadTransport(register, destinationPort) }

func loadTransport(register, offset uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2}
}

// goesTo matches packets to an address in the set.
func goesTo(f family, s *nftables.Set) expressions {
	return append(f.match(), f.load(f.dest, nameRegister), lookupSet(s, false))
}

// addressWithin matches packets whose address at the offset is in the prefix.
func addressWithin(f family, offset uint32, p netip.Prefix) expressions {
	return slices.Concat(f.match(), expressions{f.load(offset, scratchRegister)}, f.matchPrefix(p))
}

// writeRouter writes the table of a new router. Its rules never change: sandboxes are elements of sets.
func (f *firewall) writeRouter(a ranges) {
	f.conn.AddTable(f.table)
	outside := f.chain(nftables.Chain{Name: "outside"})
	forward := f.filter("forward", nftables.ChainHookForward, nftables.ChainPriorityFilter, nftables.ChainPolicyDrop)
	input := f.filter("input", nftables.ChainHookInput, nftables.ChainPriorityFilter, nftables.ChainPolicyAccept)
	f.rule(forward, matchInput(uplink), expressions{jump(outside)})
	f.rule(forward, connection(unknown|related), verdict(expr.VerdictDrop))
	m := f.writeMeter()
	bound := f.writeBound(m.refuse)
	for _, fam := range families {
		f.writeFamily(forward, outside, input, bound, m, fam, a.prefix(fam))
	}
	f.rule(outside, connection(known), m.chargeOrJump(expr.MetaKeyOIFNAME, m.cut))
	f.rule(outside, connection(known), verdict(expr.VerdictAccept))
	f.rule(outside, verdict(expr.VerdictDrop))
	f.rule(forward, matchOutput(uplink), hasPorts(), verdict(expr.VerdictAccept))
	f.rule(input, connection(known), verdict(expr.VerdictAccept))
	f.reject(input)
}

// writeFamily writes the rules of one family. A packet that is not decided here is accepted if
// it goes out.
func (f *firewall) writeFamily(forward, outside, input, bound *nftables.Chain, charges meter, fam family, own netip.Prefix) {
	m := f.set(members(fam))
	allowed, denied, opened := f.set(grants("allowed", fam)), f.set(grants("denied", fam)), f.set(grants(openedName, fam))
	special := f.set(nftables.Set{Name: "special" + fam.suffix, KeyType: fam.address, Interval: true}, intervals(fam.special)...)
	host := f.set(hostSet(fam))

	drop, accept := verdict(expr.VerdictDrop), verdict(expr.VerdictAccept)
	f.rule(outside, isNoMember(fam, m, expr.MetaKeyOIFNAME, fam.dest), drop)
	f.rule(input, matchInput(uplink), fam.match(), accept)
	f.rule(input, isNoMember(fam, m, expr.MetaKeyIIFNAME, fam.source), drop)
	f.rule(input, fam.match(), connection(related), drop)
	f.rule(input, fam.match(), charges.chargeOrJump(expr.MetaKeyIIFNAME, charges.refuse))
	f.rule(input, fam.match(), limited(bound))
	if fam.bits == ipv4.bits {
		f.writeQueries(input, f.writeQueryBound(charges.refuse))
	}

	f.rule(forward, isNoMember(fam, m, expr.MetaKeyIIFNAME, fam.source), drop)
	f.rule(forward, fam.match(), charges.chargeOrJump(expr.MetaKeyIIFNAME, charges.refuse))
	f.rule(forward, fam.match(), limited(bound))
	f.writePeers(forward, charges, fam, m, denied)
	f.rule(forward, fam.match(), connection(known), accept)
	if own.IsValid() { // addresses without a sandbox
		f.reject(forward, addressWithin(fam, fam.dest, own))
	}
	f.reject(forward, isGranted(fam, denied))
	f.rule(forward, isGranted(fam, opened), matchOutput(uplink), accept)
	f.reject(forward, goesTo(fam, host))
	f.rule(forward, isGranted(fam, allowed), matchOutput(uplink), accept)
	f.reject(forward, goesTo(fam, special))
}

// toResolver matches queries over the protocol.
func toResolver(protocol byte) expressions {
	return slices.Concat(ipv4.match(), matchProtocol(protocol), expressions{
		ipv4.load(ipv4.dest, scratchRegister),
		compareScratch(expr.CmpOpEq, resolverAddress.Addr().AsSlice()),
		loadPort(scratchRegister),
		compareScratch(expr.CmpOpEq, binary.BigEndian.AppendUint16(nil, resolverAddress.Port())),
	})
}

func hostSet(f family) nftables.Set { return nftables.Set{Name: "host" + f.suffix, KeyType: f.address} }

// intervals are the elements of a set with the prefixes, which do not overlap.
func intervals(prefixes []netip.Prefix) []nftables.SetElement {
	var elements []nftables.SetElement
	for _, p := range prefixes {
		elements = append(elements, nftables.SetElement{Key: p.Addr().AsSlice()})
		if next := lastAddr(p).Next(); next.IsValid() {
			elements = append(elements, nftables.SetElement{Key: next.AsSlice(), IntervalEnd: true})
		}
	}
	return elements
}
