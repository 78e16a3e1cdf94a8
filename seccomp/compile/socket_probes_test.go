package compile

import (
	"errors"

	"golang.org/x/sys/unix"
)

func socket(family, kind, protocol uintptr) func(string) error {
	return func(string) error {
		return closing(callResult(unix.SYS_SOCKET, family, kind|unix.SOCK_CLOEXEC, protocol))
	}
}

func socketpair(family, kind uintptr) func(string) error {
	return func(string) error {
		var ends [2]int32
		if err := call(unix.SYS_SOCKETPAIR, family, kind|unix.SOCK_CLOEXEC, 0, pointer(&ends)); err != nil {
			return err
		}
		defer unix.Close(int(ends[0]))
		return unix.Close(int(ends[1]))
	}
}

func socketProbes() []probe {
	const (
		stream, datagram, raw, packet = unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_RAW, unix.SOCK_SEQPACKET
		obsoletePacket                = unix.SOCK_PACKET
	)
	audit := probe{
		"netlink to the audit system", unix.EPROTONOSUPPORT, unix.EPERM, unix.EPROTONOSUPPORT,
		socket(unix.AF_NETLINK, raw, unix.NETLINK_AUDIT),
	}
	return []probe{
		refused("AF_ALG", socket(unix.AF_ALG, packet, 0)),
		refused("AF_ALG, high bits set", socket(unix.AF_ALG|highBits, packet, 0)),
		refused("AF_VSOCK", socket(unix.AF_VSOCK, stream, 0)),
		refused("AF_VSOCK, high bits set", socket(unix.AF_VSOCK|highBits, stream, 0)),
		refused("AF_PACKET", socket(unix.AF_PACKET, raw, 0)),
		refused("AF_PACKET by its old name", socket(unix.AF_INET, obsoletePacket, 0)),
		refused("AF_KEY", socket(unix.AF_KEY, raw, 2)),
		refused("AF_XDP", socket(unix.AF_XDP, raw, 0)),
		refused("AF_RXRPC", socket(unix.AF_RXRPC, datagram, unix.AF_INET)),
		refused("AF_TIPC", socket(unix.AF_TIPC, stream, 0)),
		refused("AF_BLUETOOTH", socket(unix.AF_BLUETOOTH, raw, 0)),
		refused("AF_CAN", socket(unix.AF_CAN, raw, 1)),
		refused("AF_SMC", socket(unix.AF_SMC, stream, 0)),
		refused("AF_UNSPEC", socket(unix.AF_UNSPEC, stream, 0)),
		refused("an unknown family", socket(99, stream, 0)),
		refused("raw IP", socket(unix.AF_INET, raw, unix.IPPROTO_ICMP)),
		refused("raw IPv6", socket(unix.AF_INET6, raw, unix.IPPROTO_ICMPV6)),
		refused("SCTP", socket(unix.AF_INET, stream, unix.IPPROTO_SCTP)),
		refused("MPTCP", socket(unix.AF_INET, stream, unix.IPPROTO_MPTCP)),
		refused("UDP-Lite", socket(unix.AF_INET6, datagram, unix.IPPROTO_UDPLITE)),
		refused("DCCP", socket(unix.AF_INET, unix.SOCK_DCCP, 0)),
		refused("netlink to the packet filter", socket(unix.AF_NETLINK, raw, unix.NETLINK_NETFILTER)),
		refused("netlink, generic", socket(unix.AF_NETLINK, raw, unix.NETLINK_GENERIC)),
		refused("netlink to IPsec", socket(unix.AF_NETLINK, raw, unix.NETLINK_XFRM)),
		audit,
		refused("a pair of AF_TIPC", socketpair(unix.AF_TIPC, stream)),
		refused("a pair of AF_INET", socketpair(unix.AF_INET, stream)),

		notStrict("unix", socket(unix.AF_UNIX, stream, 0)),
		notStrict("TCP", socket(unix.AF_INET, stream, 0)),
		notStrict("TCP by number", socket(unix.AF_INET, stream|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)),
		notStrict("TCP over IPv6", socket(unix.AF_INET6, stream, unix.IPPROTO_TCP)),
		notStrict("UDP", socket(unix.AF_INET, datagram, 0)),
		notStrict("UDP over IPv6", socket(unix.AF_INET6, datagram, unix.IPPROTO_UDP)),
		notStrict("TCP, high bits set", socket(unix.AF_INET|highBits, stream|highBits, highBits)),
		notStrict("echo request", socket(unix.AF_INET, datagram, unix.IPPROTO_ICMP)),
		notStrict("netlink for addresses and routes", socket(unix.AF_NETLINK, raw, unix.NETLINK_ROUTE)),
		allowed("a stream pair", socketpair(unix.AF_UNIX, stream)),
		allowed("a sequenced pair", socketpair(unix.AF_UNIX, packet)),
		notStrict("a datagram pair", socketpair(unix.AF_UNIX, datagram)),
		allowed("a message with a descriptor over a pair", passDescriptor),
		notStrict("sendto with an address", func(string) error {
			// Bad descriptor, not refused.
			address := unix.RawSockaddrUnix{Family: unix.AF_UNIX}
			err := call(unix.SYS_SENDTO, ^uintptr(0), 0, 0, 0, pointer(&address), 2)
			if errors.Is(err, unix.EBADF) {
				return nil
			}
			return err
		}),
	}
}

// passDescriptor does what the agent does with its control socket.
func passDescriptor(string) error {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(ends[0])
	defer unix.Close(ends[1])
	if err := unix.Sendmsg(ends[0], []byte("x"), unix.UnixRights(0), nil, 0); err != nil {
		return err
	}
	data, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(ends[1], data, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return err
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return err
	}
	if err := unix.Close(fds[0]); err != nil {
		return err
	}
	// send(3) is sendto without an address.
	return call(unix.SYS_SENDTO, uintptr(ends[0]), pointer(&data[0]), 1, 0, 0, 0)
}
