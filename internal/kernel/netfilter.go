package kernel

import (
	"encoding/binary"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// probeNftables makes a table with a chain of type nat in a network namespace of its own:
// such chains cut and redirect a sandbox's network. The kernel may load its modules for
// it, as for any user.
func probeNftables(p *prober) (string, error) {
	s := newScript()
	defer s.free()
	socket := s.call("open a netfilter socket", unix.SYS_SOCKET,
		num(unix.AF_NETLINK), num(unix.SOCK_RAW|unix.SOCK_CLOEXEC), num(unix.NETLINK_NETFILTER))
	batch := nftBatch()
	s.call("send to nf_tables", unix.SYS_SENDTO, socket, s.bytes(batch), num(len(batch)), num(0), num(0), num(0))
	reply, address := s.buffer(4096)
	// The kernel has answered by the time that sendto returns.
	s.call("receive from nf_tables", unix.SYS_RECVFROM, socket, address, num(len(reply)), num(unix.MSG_DONTWAIT), num(0), num(0))
	if err := p.run(s, unix.CLONE_NEWNET); err != nil {
		return "", err
	}
	return "", netlinkError(reply)
}

// netlinkError reads an acknowledgement: struct nlmsghdr, then the error
// negated (netlink(7)).
func netlinkError(reply []byte) error {
	if kind := binary.NativeEndian.Uint16(reply[4:]); kind != unix.NLMSG_ERROR {
		return fmt.Errorf("nf_tables answered with a message of type %d", kind)
	}
	if errno := -int32(binary.NativeEndian.Uint32(reply[unix.SizeofNlMsghdr:])); errno != 0 {
		return &callError{call: "make an nf_tables chain", err: syscall.Errno(errno)}
	}
	return nil
}

// nftBatch is the transaction "add table inet probe; add chain inet probe nat
// { type nat hook postrouting priority 100; }", of which the kernel
// acknowledges the chain (include/uapi/linux/netfilter/nf_tables.h).
func nftBatch() []byte {
	const (
		subsystem   = unix.NFNL_SUBSYS_NFTABLES << 8
		postRouting = 4 // NF_INET_POST_ROUTING
	)
	table, chain, kind := []byte("probe\x00"), []byte("nat\x00"), []byte("nat\x00")
	hook := append(attribute(unix.NFTA_HOOK_HOOKNUM, binary.BigEndian.AppendUint32(nil, postRouting)),
		attribute(unix.NFTA_HOOK_PRIORITY, binary.BigEndian.AppendUint32(nil, 100))...)
	newChain := attribute(unix.NFTA_CHAIN_TABLE, table)
	newChain = append(newChain, attribute(unix.NFTA_CHAIN_NAME, chain)...)
	newChain = append(newChain, attribute(unix.NFTA_CHAIN_HOOK|unix.NLA_F_NESTED, hook)...)
	newChain = append(newChain, attribute(unix.NFTA_CHAIN_TYPE, kind)...)

	batch := message(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, nil)
	batch = append(batch, message(subsystem|unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, unix.NFPROTO_INET, 0,
		attribute(unix.NFTA_TABLE_NAME, table))...)
	batch = append(batch, message(subsystem|unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE|unix.NLM_F_ACK, unix.NFPROTO_INET, 0, newChain)...)
	return append(batch, message(unix.NFNL_MSG_BATCH_END, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, nil)...)
}

// message is struct nlmsghdr, struct nfgenmsg and attributes.
func message(kind, flags uint16, family byte, resource uint16, attributes []byte) []byte {
	m := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+4+len(attributes)))
	m = binary.NativeEndian.AppendUint16(m, kind)
	m = binary.NativeEndian.AppendUint16(m, flags|unix.NLM_F_REQUEST)
	m = append(m, make([]byte, 8)...) // sequence number, port
	m = append(m, family, unix.NFNETLINK_V0)
	m = binary.BigEndian.AppendUint16(m, resource)
	return append(m, attributes...)
}

// attribute is struct nlattr with its payload, padded to four bytes.
func attribute(kind uint16, payload []byte) []byte {
	a := binary.NativeEndian.AppendUint16(nil, uint16(unix.SizeofNlAttr+len(payload)))
	a = binary.NativeEndian.AppendUint16(a, kind)
	a = append(a, payload...)
	return append(a, make([]byte, -len(a)&3)...)
}
