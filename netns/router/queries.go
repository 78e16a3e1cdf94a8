package router

import (
	"encoding/binary"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/nameserver"
)

// The queries of a sandbox: packets over UDP, and connections over TCP. All sandboxes share the socket of the
// resolver. Without a bound before this socket, the queries of one sandbox fill it, and the kernel drops the
// queries of the others.
const (
	// askedTime is the time for which the kernel keeps the bound of a sandbox without queries. Such a sandbox has
	// its burst again after QueryBurst/QueryRate seconds.
	askedTime = 10 * time.Second
	// maxQuery is the longest query over UDP, in bytes.
	maxQuery = 1500
	// queryBuffer is the size of the resolver's socket, in bytes. It has room for the longest queries of ten bursts. The
	// kernel takes the memory only for queries that wait there.
	queryBuffer = 10 * nameserver.QueryBurst * 2 * maxQuery
)

// queryingSet is the set of sandboxes with queries. The packet filter adds the elements, and drops them after askedTime.
func queryingSet() nftables.Set {
	return nftables.Set{
		Name: "asked", KeyType: nftables.TypeIFName, KeyByteOrder: binaryutil.NativeEndian,
		Dynamic: true, HasTimeout: true, Size: 2 * (maxNumber + 1), // also with elements of links that are gone
	}
}

// writeQueryBound writes the chain for queries. It refuses queries above the bound.
func (f *firewall) writeQueryBound(refuse *nftables.Chain) *nftables.Chain {
	set, bound := f.set(queryingSet()), f.chain(nftables.Chain{Name: "queries"})
	f.rule(bound, isLongQuery(), expressions{jump(refuse)})
	f.rule(bound, expressions{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: scratchRegister},
		&expr.Dynset{
			SrcRegKey: scratchRegister, SetName: set.Name, SetID: set.ID, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: askedTime,
			Exprs: []expr.Any{&expr.Limit{Type: expr.LimitTypePkts, Rate: nameserver.QueryRate, Unit: expr.LimitTimeSecond, Burst: nameserver.QueryBurst, Over: true}},
		},
		jump(refuse),
	})
	return bound
}

// writeQueries writes the rules for packets to the resolver.
func (f *firewall) writeQueries(input, bound *nftables.Chain) {
	limit := expressions{jump(bound)}
	udp, tcp := toResolver(unix.IPPROTO_UDP), toResolver(unix.IPPROTO_TCP)
	f.rule(input, udp, limit)
	f.rule(input, tcp, connection(expr.CtStateBitNEW), limit)
	f.rule(input, udp, verdict(expr.VerdictAccept))
	f.rule(input, tcp, verdict(expr.VerdictAccept))
}

// isLongQuery matches packets of UDP that are longer than a query.
func isLongQuery() expressions {
	const length, header = 4, 8 // the place of the length in the header of UDP, and the size of the header
	return append(matchProtocol(unix.IPPROTO_UDP),
		loadTransport(scratchRegister, length),
		compareScratch(expr.CmpOpGt, binary.BigEndian.AppendUint16(nil, header+maxQuery)))
}
