package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/netns"
)

// Dial connects to a port of the sandbox, with any kind of network, and returns the socket. With
// TCP it tries all addresses of the target. UDP takes the first one.
//
// Errors: *[fault.ConfigError], [fault.ErrNotRunning], unix.ECONNREFUSED if nothing listens.
func (s *Sandbox) Dial(ctx context.Context, target protocol.Target) (*os.File, error) {
	hosts, port, err := parseTarget(target)
	if err != nil {
		return nil, err
	}
	if err := s.renew(ctx); err != nil {
		return nil, err
	}
	namespace, err := record.OpenNetwork(s.session.Init())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, s.session.Why(ctx, &fault.SandboxError{ID: s.session.ID, Err: fault.ErrNotRunning})
	}
	if err != nil {
		return nil, err
	}
	defer namespace.Close()
	for _, host := range hosts {
		a := netip.AddrPortFrom(host, port)
		var socket *os.File
		if socket, err = openIn(namespace, target.Network, a); err != nil {
			break
		}
		if err = connectTo(ctx, socket, a); err == nil {
			return socket, nil
		}
		socket.Close()
		if !errors.Is(err, unix.ECONNREFUSED) {
			break
		}
	}
	return nil, fmt.Errorf("connect to %s %s of the sandbox: %w", target.Network, target.Address, err)
}

// parseTarget returns the hosts to try, in their order, and the port.
func parseTarget(target protocol.Target) (hosts []netip.Addr, port uint16, err error) {
	mistake := func(format string, args ...any) error {
		return &fault.ConfigError{Reason: fmt.Sprintf(format, args...)}
	}
	ipv4, ipv6 := netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()
	switch target.Network {
	case "tcp", "udp":
		hosts = []netip.Addr{ipv4, ipv6}
	case "tcp4", "udp4":
		hosts = []netip.Addr{ipv4}
	case "tcp6", "udp6":
		hosts = []netip.Addr{ipv6}
	default:
		return nil, 0, mistake("unknown network %.64q; use tcp, tcp4, tcp6, udp, udp4 or udp6", target.Network)
	}
	host, text, err := net.SplitHostPort(target.Address)
	if err != nil {
		return nil, 0, mistake("invalid address %.64q: use HOST:PORT", target.Address)
	}
	number, err := strconv.ParseUint(text, 10, 16)
	if err != nil || number == 0 {
		return nil, 0, mistake("invalid address %.64q: the port must be a number from 1 to 65535", target.Address)
	}
	if host != "" && host != "localhost" {
		a, err := netip.ParseAddr(host)
		a = a.Unmap()
		if err != nil || !a.IsLoopback() || a.Zone() != "" {
			return nil, 0, mistake("invalid address %.64q: the host must be empty, localhost or a loopback address", target.Address)
		}
		if !slices.ContainsFunc(hosts, func(h netip.Addr) bool { return h.Is4() == a.Is4() }) {
			return nil, 0, mistake("invalid address %.64q: the network is %s", target.Address, target.Network)
		}
		hosts = []netip.Addr{a}
	}
	return hosts, uint16(number), nil
}

// openIn makes a socket in a network namespace. The socket stays there.
func openIn(namespace *os.File, network string, to netip.AddrPort) (*os.File, error) {
	family, kind := unix.AF_INET, unix.SOCK_STREAM
	if to.Addr().Is6() {
		family = unix.AF_INET6
	}
	if strings.HasPrefix(network, "udp") {
		kind = unix.SOCK_DGRAM
	}
	var fd int
	err := netns.Do(namespace, func() (err error) {
		fd, err = unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), network), nil
}

// connectTo connects a socket that does not block. It waits for the connection, or for ctx.
func connectTo(ctx context.Context, socket *os.File, to netip.AddrPort) error {
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	defer channel.Bind(ctx, socket.SetWriteDeadline)()
	var result error
	err = raw.Write(func(fd uintptr) bool {
		// The call that follows the end of the handshake has its outcome (net/ipv4/af_inet.c:__inet_stream_connect).
		result = unix.Connect(int(fd), socketAddress(to))
		if result == nil && isSelfConnected(int(fd), to) {
			result = unix.ECONNREFUSED
		}
		return result != unix.EINPROGRESS && result != unix.EALREADY
	})
	if err := channel.Outcome(ctx, err, nil); err != nil {
		return err
	}
	return os.NewSyscallError("connect", result)
}

// isSelfConnected says whether a socket is connected to itself. The kernel can choose the target's port for
// the socket if no other socket has the port.
func isSelfConnected(fd int, to netip.AddrPort) bool {
	switch own, _ := unix.Getsockname(fd); own := own.(type) { // without a name it is not connected to itself
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(own.Addr), uint16(own.Port)) == to
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(own.Addr), uint16(own.Port)) == to
	}
	return false
}

func socketAddress(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}
