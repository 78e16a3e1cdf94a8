package router

import (
	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// maxConnections bounds the connections of a sandbox, with those to the resolver. The kernel tracks each
// connection in the router and on the host. Both have room for net.netfilter.nf_conntrack_max of them:
// 65,536 on a host with more than 1 GiB of memory, and 262,144 above 4 GiB (nf_conntrack_core.c:
// nf_conntrack_init_start()). Without a bound one sandbox could fill these tables, and the host and all
// other sandboxes would lose new connections. A TCP connection that has closed does not count, although
// the kernel tracks it for two minutes more: the kernel drops such connections once its table is nearly
// full (gc_worker_can_early_drop()).
const maxConnections = 4096

// counted is the set of sandboxes with connections. The packet filter adds the elements. Each element
// has a list of the connections, which the kernel keeps short (nf_conncount.c).
func counted() nftables.Set {
	return nftables.Set{
		Name: "connections", KeyType: nftables.TypeIFName, KeyByteOrder: binaryutil.NativeEndian,
		Dynamic: true, Size: 2 * (maxNumber + 1), // also with elements of links that are about to go
	}
}

// writeBound writes the chain for the first packet of a connection. It refuses connections above the
// bound.
func (f *firewall) writeBound(refuse *nftables.Chain) *nftables.Chain {
	set, bound := f.set(counted()), f.chain(nftables.Chain{Name: "bound"})
	f.rule(bound, expressions{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: scratchRegister},
		&expr.Dynset{
			SrcRegKey: scratchRegister, SetName: set.Name, SetID: set.ID, Operation: unix.NFT_DYNSET_OP_ADD,
			Exprs: []expr.Any{&expr.Connlimit{Count: maxConnections, Flags: expr.NFT_CONNLIMIT_F_INV}},
		},
		jump(refuse),
	})
	return bound
}

// limited leads the first packet of a connection to the chain of the bound.
func limited(bound *nftables.Chain) expressions {
	return append(connection(expr.CtStateBitNEW), jump(bound))
}
