package capture

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

const (
	dnsPort = 53
	// mark is the mark of all packets of the listening sockets and their connections (SO_MARK).
	mark = 0x5353
	// backlog is the number of connections that wait until the caller accepts them.
	backlog = 1024
)

// listenForQueries opens the sockets for DNS in the calling thread's network namespace.
func (l *Listeners) listenForQueries(families []family) error {
	for _, f := range families {
		address := netip.AddrPortFrom(f.anywhere(), dnsPort)
		if err := listen(&l.DNSPackets, f, unix.SOCK_DGRAM, address); err != nil {
			return err
		}
		if err := listen(&l.DNSStreams, f, unix.SOCK_STREAM, address); err != nil {
			return err
		}
	}
	return nil
}

// listenForStreams adds a socket of each family for streams, in the calling thread's network namespace.
func (l *Listeners) listenForStreams(families []family, address func(family) netip.AddrPort) error {
	for _, f := range families {
		if err := listen(&l.Streams, f, unix.SOCK_STREAM, address(f)); err != nil {
			return err
		}
	}
	return nil
}

// listen opens a listening socket, and appends it to the files.
func listen(files *[]*os.File, f family, kind int, address netip.AddrPort) error {
	file, err := openSocket(f, kind, address)
	if errors.Is(err, unix.EADDRINUSE) {
		err = fmt.Errorf("%w; end the program inside that uses port %d", err, address.Port())
	}
	if err != nil {
		return fmt.Errorf("listen at %s: %w", address, err)
	}
	*files = append(*files, file)
	return nil
}

// openSocket opens a socket. No other socket can share the address, also not one of the same user: UDP
// sockets lack SO_REUSEADDR and SO_REUSEPORT. TCP sockets need SO_REUSEADDR, since ended connections can
// still have the port. The kernel refuses another socket at the port of one that listens.
func openSocket(f family, kind int, address netip.AddrPort) (*os.File, error) {
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
	var name unix.Sockaddr
	err = descriptor.Use(f, func(fd int) (err error) {
		name, err = unix.Getsockname(fd)
		return err
	})
	switch a := name.(type) {
	case *unix.SockaddrInet4:
		port = uint16(a.Port)
	case *unix.SockaddrInet6:
		port = uint16(a.Port)
	}
	return port, err
}
