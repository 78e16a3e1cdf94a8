package nameserver

import (
	"encoding/binary"
	"net"
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// queueErrors has the kernel keep the packet of each ICMP error for readErrors. Otherwise a socket tells an error
// without the packet, and the error of one query would end another one.
func queueErrors(conn syscall.Conn, server netip.Addr) error {
	level, option := unix.IPPROTO_IP, unix.IP_RECVERR
	if server.Is6() && !server.Is4In6() {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVERR
	}
	return descriptor.Use(conn, func(fd int) error { return unix.SetsockoptInt(fd, level, option, 1) })
}

// readErrors ends the waits of the queries that ICMP errors are about, and returns the number of the errors. An error
// without the first bytes of the query ends no wait.
func (p *port) readErrors() (count int) {
	var query [2]byte
	var control [512]byte
	for ; ; count++ {
		var n, length int
		err := descriptor.Use(p.conn, func(fd int) (err error) {
			n, length, _, _, err = unix.Recvmsg(fd, query[:], control[:], unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
			return err
		})
		if err != nil {
			return count
		}
		if cause := causeOf(control[:length]); cause != nil && n == len(query) {
			p.finish(binary.BigEndian.Uint16(query[:]), nil, result{err: &net.OpError{Op: "ask", Net: "udp", Addr: p.conn.RemoteAddr(), Err: cause}})
		}
	}
}

// causeOf is the error in the control messages of the error queue: struct sock_extended_err of linux/errqueue.h.
func causeOf(control []byte) error {
	messages, _ := unix.ParseSocketControlMessage(control) // of the kernel
	for _, m := range messages {
		isError := m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_RECVERR ||
			m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_RECVERR
		if isError && len(m.Data) >= int(unsafe.Sizeof(unix.SockExtendedErr{})) {
			return syscall.Errno(binary.NativeEndian.Uint32(m.Data))
		}
	}
	return nil
}
