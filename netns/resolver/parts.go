package resolver

import (
	"encoding/binary"
	"os"

	"golang.org/x/sys/unix"
)

// A sandbox can hand the kernel many queries of one length at once (udp(7), UDP_SEGMENT). On the way they are one packet,
// also for the bound of the router's packet filter. Without the option UDP_GRO, the kernel would part the packet before
// the resolver's socket, and up to 128 queries would fill the socket in place of one.

// maxParts is the number of queries of one packet that are answered. The C library sends two at once for a name.
const maxParts = 4

// KeepWhole has a socket of UDP take packets as they come. Call it before the socket is bound: the kernel parts the packets
// that come earlier, also those that wait for the start of the resolver.
func KeepWhole(fd int) error {
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_GRO, 1))
}

// splitQueries are the first queries of a packet. control has the control messages of the packet.
func splitQueries(packet, control []byte) (all [][]byte) {
	size := partSize(control)
	if size <= 0 {
		return [][]byte{packet}
	}
	for len(packet) > 0 && len(all) < maxParts {
		n := min(size, len(packet))
		all = append(all, packet[:n])
		packet = packet[n:]
	}
	return all
}

// partSize is the length of each part but the last. It is 0 for a packet of one part.
func partSize(control []byte) int {
	messages, _ := unix.ParseSocketControlMessage(control) // of the kernel
	for _, m := range messages {
		if m.Header.Level == unix.SOL_UDP && m.Header.Type == unix.UDP_GRO && len(m.Data) >= 4 {
			return int(binary.NativeEndian.Uint32(m.Data))
		}
	}
	return 0
}
