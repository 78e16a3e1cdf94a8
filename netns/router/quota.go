package router

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// quotas is the set of sandboxes with a quota. Each element has a quota expression of its own. A
// lookup charges the packet to the element, and matches once the quota is used up
// (nft_lookup_eval(), Linux 5.7).
func quotas() nftables.Set {
	return nftables.Set{Name: "metered", KeyType: nftables.TypeIFName, KeyByteOrder: binaryutil.NativeEndian}
}

// A meter is the part of the router's table that holds quotas.
type meter struct {
	quotas *nftables.Set
	// refuse answers packets of a sandbox; cut ends connections from outside.
	refuse, cut *nftables.Chain
}

// writeMeter writes the chains for packets beyond a quota. An answer of the resolver is charged and
// always passes. Once the quota is used up, the next query is refused.
func (f *firewall) writeMeter() meter {
	m := meter{f.set(quotas()), f.chain(nftables.Chain{Name: "refuse"}), f.chain(nftables.Chain{Name: "cut"})}
	f.reject(m.refuse)
	f.rule(m.cut, matchProtocol(unix.IPPROTO_TCP), becomeReset(), verdict(expr.VerdictAccept))
	f.rule(m.cut, verdict(expr.VerdictDrop))
	output := f.filter("output", nftables.ChainHookOutput, nftables.ChainPriorityFilter, nftables.ChainPolicyAccept)
	f.rule(output, m.charge(expr.MetaKeyOIFNAME))
	return m
}

// charge charges a packet to the quota of its sandbox, and matches if the quota is used up. Each
// packet must pass only one such rule.
func (m meter) charge(key expr.MetaKey) expressions {
	return expressions{&expr.Meta{Key: key, Register: nameRegister}, lookupSet(m.quotas, false)}
}

// chargeOrJump charges a packet, and leads it to a chain if the quota is used up.
func (m meter) chargeOrJump(key expr.MetaKey, chain *nftables.Chain) expressions {
	return append(m.charge(key), jump(chain))
}

// becomeReset turns a TCP packet on its way to a sandbox into a reset. Without the reset, a program
// that waits for data would wait forever. nft(8) 1.1.0 reads freed memory, and can crash, where it
// lists one expression that clears and sets bits.
func becomeReset() expressions {
	const flags, checksum = 12, 16 // places in the header of TCP: RFC 9293, section 3.1
	return expressions{
		&expr.Payload{DestRegister: scratchRegister, Base: expr.PayloadBaseTransportHeader, Offset: flags, Len: 2},
		bitwise([]byte{0xf0, 0}, []byte{0, 0}),       // the length of the header stays
		bitwise([]byte{0xff, 0xff}, []byte{0, 0x14}), // RST and ACK
		&expr.Payload{
			OperationType: expr.PayloadWrite, SourceRegister: scratchRegister,
			Base: expr.PayloadBaseTransportHeader, Offset: flags, Len: 2,
			CsumType: expr.CsumTypeInet, CsumOffset: checksum,
		},
	}
}

// A quota is a number of bytes, and the bytes that were charged to it.
type quota struct{ bytes, charged uint64 }

// addQuota adds the quota of a sandbox to the router's table. It changes no quota that is there.
func addQuota(namespace *os.File, link string, q quota) error {
	q.charged = min(q.charged, q.bytes)
	element, err := quotaElement(link, &q)
	if err != nil {
		return err
	}
	batch := func(kind netlink.HeaderType) netlink.Message {
		return netlink.Message{
			Header: netlink.Header{Type: kind, Flags: netlink.Request},
			Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES},
		}
	}
	change := netlink.Message{
		Header: netlink.Header{Type: nftMessage(unix.NFT_MSG_NEWSETELEM), Flags: netlink.Request | netlink.Acknowledge | netlink.Create},
		Data:   element,
	}
	_, err = exchangeMessages(namespace, batch(unix.NFNL_MSG_BATCH_BEGIN), change, batch(unix.NFNL_MSG_BATCH_END))
	if errors.Is(err, unix.ENOENT) {
		if _, err := isUsed(namespace); err == nil { // the router's table is there
			return fmt.Errorf("--network-quota: the kernel lacks quotas of nftables (CONFIG_NFT_QUOTA, module nft_quota): %w", errors.ErrUnsupported)
		}
	}
	if err != nil {
		return fmt.Errorf("nftables: set the quota of %s: %w", link, err)
	}
	return nil
}

// chargedTo returns the bytes that were charged to the quota of a sandbox. They are at most the
// quota. is is false for a sandbox without a quota.
func chargedTo(namespace *os.File, link string) (charged uint64, is bool, err error) {
	element, err := quotaElement(link, nil)
	if err != nil {
		return 0, false, err
	}
	answers, err := exchangeMessages(namespace, netlink.Message{
		Header: netlink.Header{Type: nftMessage(unix.NFT_MSG_GETSETELEM), Flags: netlink.Request}, Data: element,
	})
	if errors.Is(err, unix.ENOENT) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("nftables: read the quota of %s: %w", link, err)
	}
	for _, a := range answers {
		value, err := attribute(a.Data[familyHeader:], unix.NFTA_SET_ELEM_LIST_ELEMENTS, unix.NFTA_LIST_ELEM,
			unix.NFTA_SET_ELEM_EXPR, unix.NFTA_EXPR_DATA, unix.NFTA_QUOTA_CONSUMED)
		if err == nil && len(value) == 8 {
			return binary.BigEndian.Uint64(value), true, nil
		}
	}
	return 0, false, fmt.Errorf("nftables: the quota of %s has no number", link)
}

// forgetTries is how often [forgetQuotas] looks again at the sets.
const forgetTries = 20

// forgetQuotas removes the quotas of the links that isGone names, and the lists of their connections. The
// kernel itself removes a list without connections, at any time. Then it refuses the whole removal.
func forgetQuotas(namespace *os.File, isGone func(link string) bool) error {
	for tries := 1; ; tries++ {
		err := tryToForgetQuotas(namespace, isGone)
		if !errors.Is(err, unix.ENOENT) || tries == forgetTries {
			return err
		}
	}
}

func tryToForgetQuotas(namespace *os.File, isGone func(link string) bool) error {
	f, err := openFirewall(namespace, tableName)
	if err != nil {
		return err
	}
	for _, set := range []nftables.Set{quotas(), counted()} {
		if _, err := f.forget(f.existingSet(set), isGone); err != nil {
			return err
		}
	}
	return f.flush()
}

// exchangeMessages sends messages to the packet filter of a network namespace, and returns the answer.
func exchangeMessages(namespace *os.File, messages ...netlink.Message) (answer []netlink.Message, err error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: int(namespace.Fd())})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if _, err := conn.SendMessages(messages); err != nil {
		return nil, err
	}
	return conn.Receive()
}

func nftMessage(kind netlink.HeaderType) netlink.HeaderType {
	return unix.NFNL_SUBSYS_NFTABLES<<8 | kind
}

// familyHeader is the size of struct nfgenmsg (linux/netfilter/nfnetlink.h).
const familyHeader = 4

// quotaElement is a message about the element of a sandbox, with its quota if q is not nil. The
// nftables library knows no elements with a quota.
func quotaElement(link string, q *quota) ([]byte, error) {
	e := netlink.NewAttributeEncoder()
	e.ByteOrder = binary.BigEndian
	e.String(unix.NFTA_SET_ELEM_LIST_TABLE, tableName)
	e.String(unix.NFTA_SET_ELEM_LIST_SET, quotas().Name)
	e.Nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(list *netlink.AttributeEncoder) error {
		list.Nested(unix.NFTA_LIST_ELEM, func(element *netlink.AttributeEncoder) error {
			element.Nested(unix.NFTA_SET_ELEM_KEY, func(key *netlink.AttributeEncoder) error {
				key.Bytes(unix.NFTA_DATA_VALUE, interfaceName(link))
				return nil
			})
			if q != nil {
				element.Nested(unix.NFTA_SET_ELEM_EXPR, q.encode)
			}
			return nil
		})
		return nil
	})
	attributes, err := e.Encode()
	return append([]byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}, attributes...), err
}

func (q *quota) encode(e *netlink.AttributeEncoder) error {
	e.String(unix.NFTA_EXPR_NAME, "quota")
	e.Nested(unix.NFTA_EXPR_DATA, func(data *netlink.AttributeEncoder) error {
		data.Uint64(unix.NFTA_QUOTA_BYTES, q.bytes)
		data.Uint64(unix.NFTA_QUOTA_CONSUMED, q.charged)
		data.Uint32(unix.NFTA_QUOTA_FLAGS, unix.NFT_QUOTA_F_INV) // matches beyond the quota
		return nil
	})
	return nil
}

// attribute is the content of a nested attribute, by the types on the way to it.
func attribute(data []byte, path ...uint16) ([]byte, error) {
	for _, kind := range path {
		d, err := netlink.NewAttributeDecoder(data)
		if err != nil {
			return nil, err
		}
		data = nil
		for d.Next() {
			if d.Type() == kind {
				data = d.Bytes()
			}
		}
		if err := d.Err(); err != nil {
			return nil, err
		}
	}
	return data, nil
}
