package router

import (
	"encoding/binary"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Attributes of linux/netfilter/nfnetlink_conntrack.h, and a flag of net/netfilter/nf_internals.h.
const (
	filterAttribute = 25 // CTA_FILTER
	originalFlags   = 1  // CTA_FILTER_ORIG_FLAGS
	sourceFlag      = 1  // CTA_FILTER_F_CTA_IP_SRC
)

// forgetSource has the kernel remove the tracked connections of an IPv4 source, in the namespace of
// the calling thread. A list of the table takes milliseconds, also of an empty one: the kernel locks
// each bucket. An older kernel refuses the incomplete tuple, and removes nothing
// (nf_conntrack_netlink.c:ctnetlink_del_conntrack()). For IPv6 the comparison of Linux 6.18 is
// inverted (ctnetlink_filter_match_tuple()).
func forgetSource(source netip.Addr) error {
	tuple := nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_ORIG, nil)
	tuple.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nil).AddRtAttr(nl.CTA_IP_V4_SRC, source.AsSlice())
	filter := nl.NewRtAttr(unix.NLA_F_NESTED|filterAttribute, nil)
	filter.AddRtAttr(originalFlags, binary.NativeEndian.AppendUint32(nil, sourceFlag))

	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_INET, Version: 1}) // version 0 ignores the family
	request.AddData(tuple)
	request.AddData(filter)
	_, err := request.Execute(unix.NETLINK_NETFILTER, 0)
	return err
}

// forgetAll removes the tracked connections of a source from the namespace; nil is the caller's.
func forgetAll(namespace *os.File, source netip.Addr) error {
	if source.Is4() && inNamespace(namespace, func() error { return forgetSource(source) }) == nil {
		return nil
	}
	return forgetConnections(namespace, source, noneStays)
}
