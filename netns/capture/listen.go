package capture

import (
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

const (
	dnsPort = 53
	// mark is the mark of all packets of the listening sockets and their connections (SO_MARK).
	mark = 0x5353
	// backlog is the number of connections that wait until the caller accepts them.
	backlog = 1024
)

// listen opens the sockets in the calling thread's network namespace.
func (l *Listeners) listen(families []family) error {
	for _, f := range families {
		streams, packets, dnsStreams, anywhere := &l.Streams4, &l.DNSPackets4, &l.DNSStreams4, netip.IPv4Unspecified()
		if f.number == unix.AF_INET6 {
			streams, packets, dnsStreams, anywhere = &l.Streams6, &l.DNSPackets6, &l.DNSStreams6, netip.IPv6Unspecified()
		}
		dns := netip.AddrPortFrom(anywhere, dnsPort)
		for _, s := range []struct {
			file    **os.File
			kind    int
			address netip.AddrPort
		}{
			{streams, unix.SOCK_STREAM, netip.AddrPortFrom(f.listener, 0)},
			{packets, unix.SOCK_DGRAM, dns},
			{dnsStreams, unix.SOCK_STREAM, dns},
		} {
			var err error
			if *s.file, err = open(f, s.kind, s.address); err != nil {
				if s.address == dns && isAny(err, unix.EADDRINUSE) {
					err = fmt.Errorf("%w; end the server inside that uses port %d", err, dnsPort)
				}
				return fmt.Errorf("listen at %s: %w", s.address, err)
			}
		}
	}
	return nil
}

// open opens a socket. No other socket can share the address, also not one of the same user: UDP
// sockets lack SO_REUSEADDR and SO_REUSEPORT. TCP sockets need SO_REUSEADDR, since ended connections can
// still have the port. The kernel lets nobody share the port of a socket that listens.
func open(f family, kind int, address netip.AddrPort) (*os.File, error) {
	fd, err := unix.Socket(f.number, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	isStream := kind == unix.SOCK_STREAM
	err = prepare(fd, f, isStream)
	if err == nil {
		err = unix.Bind(fd, sockaddr(address))
	}
	if err == nil && isStream {
		err = unix.Listen(fd, backlog)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), address.String()), nil
}

func prepare(fd int, f family, isStream bool) error {
	options := []struct {
		level, name, value int
		is                 bool
	}{
		{unix.SOL_SOCKET, unix.SO_MARK, mark, true},
		{unix.SOL_SOCKET, unix.SO_REUSEADDR, 1, isStream},
		{unix.SOL_IP, unix.IP_TRANSPARENT, 1, f.number == unix.AF_INET},
		{unix.SOL_IP, unix.IP_PKTINFO, 1, f.number == unix.AF_INET && !isStream},
		{unix.SOL_IPV6, unix.IPV6_V6ONLY, 1, f.number == unix.AF_INET6},
		{unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1, f.number == unix.AF_INET6},
		{unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1, f.number == unix.AF_INET6 && !isStream},
	}
	for _, o := range options {
		if !o.is {
			continue
		}
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	return nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// portOf is the port that the kernel has chosen for a listener.
func portOf(f *os.File) (port uint16, err error) {
	c, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var name unix.Sockaddr
	if control := c.Control(func(fd uintptr) { name, err = unix.Getsockname(int(fd)) }); control != nil {
		return 0, control
	}
	switch a := name.(type) {
	case *unix.SockaddrInet4:
		port = uint16(a.Port)
	case *unix.SockaddrInet6:
		port = uint16(a.Port)
	}
	return port, err
}
