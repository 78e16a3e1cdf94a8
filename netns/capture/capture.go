package capture

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/netns"
	"github.com/sandbox-runtime/sandbox-runtime/netns/sockets"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Listeners are the sockets of a namespace that captures. Those of IPv6 are nil if the namespace has no
// IPv6.
type Listeners struct {
	// Streams accept the captured TCP connections.
	Streams4, Streams6 *os.File
	// DNSPackets get the queries over UDP. Each message comes with the asked address (IP_PKTINFO,
	// IPV6_PKTINFO). The answer must name this address as its source in the same way.
	DNSPackets4, DNSPackets6 *os.File
	// DNSStreams accept the connections to port 53.
	DNSStreams4, DNSStreams6 *os.File
}

// Close closes all sockets. The namespace still captures: connections are refused.
func (l *Listeners) Close() error {
	var errs []error
	for _, f := range []**os.File{&l.Streams4, &l.Streams6, &l.DNSPackets4, &l.DNSPackets6, &l.DNSStreams4, &l.DNSStreams6} {
		if *f != nil {
			errs = append(errs, (*f).Close())
			*f = nil
		}
	}
	return errors.Join(errs...)
}

// Open makes the namespace capture connections to the ports, and returns the sockets. lo must be up, as
// [netns.Create] leaves lo. In a namespace that captures already, Open replaces the sockets: the
// caller must have closed the earlier ones. If Open fails, the namespace captures nothing.
//
// The error wraps [errors.ErrUnsupported] if the kernel lacks a part of nftables. The caller needs
// CAP_SYS_ADMIN in its user namespace, and CAP_NET_ADMIN in the namespace's.
func Open(namespace *os.File, ports []spec.PortRange) (*Listeners, error) {
	merged, err := merge(ports)
	if err != nil {
		return nil, fmt.Errorf("capture connections: %w", err)
	}
	in, err := enter(namespace)
	if err != nil {
		return nil, fmt.Errorf("capture connections: %w", err)
	}
	defer in.close()
	l := &Listeners{}
	if err := in.open(l, merged); err != nil {
		_, removed := in.remove()
		return nil, fmt.Errorf("capture connections: %w", errors.Join(err, l.Close(), removed))
	}
	return l, nil
}

// open adds the routes last: before, no packet to a foreign address passes.
func (in *inside) open(l *Listeners, ports []spec.PortRange) error {
	families, err := in.addAddresses()
	if err != nil {
		return err
	}
	if err := netns.Do(in.namespace, func() error { return l.listen(families) }); err != nil {
		return err
	}
	if err := in.writeRules(l, ports); err != nil {
		return err
	}
	return in.addRoutes(families)
}

// SetPorts changes the ports of captured connections in one step. SetPorts ends the connections to
// ports that are not in the new set.
func SetPorts(namespace *os.File, ports []spec.PortRange) error {
	merged, err := merge(ports)
	if err != nil {
		return fmt.Errorf("change the captured ports: %w", err)
	}
	in, err := enter(namespace)
	if err != nil {
		return fmt.Errorf("change the captured ports: %w", err)
	}
	defer in.close()
	err = in.writePorts(merged)
	if err == nil {
		err = in.end(func(protocol byte, local, peer netip.AddrPort) bool {
			return protocol == unix.IPPROTO_TCP && (isClosed(merged, local) || isClosed(merged, peer))
		})
	}
	if err != nil {
		return fmt.Errorf("change the captured ports: %w", err)
	}
	return nil
}

// isClosed says whether no connection to the end may be.
func isClosed(ports []spec.PortRange, end netip.AddrPort) bool {
	return !isOwn(end.Addr()) && end.Port() != dnsPort && !contains(ports, end.Port())
}

// Connections is the number of sockets of the sandbox's programs that are connected with a captured address.
func Connections(namespace *os.File) (count int, err error) {
	err = netns.Do(namespace, func() error {
		_, err := sockets.End(func(_ byte, local, peer netip.AddrPort) bool {
			if isCaptured(local, peer) {
				count++
			}
			return false
		})
		return err
	})
	return count, err
}

// isCaptured says whether a socket is that of a program, with a captured address as its peer.
func isCaptured(local, peer netip.AddrPort) bool { return isOwn(local.Addr()) && !isOwn(peer.Addr()) }

// Remove leaves the namespace with its loopback addresses only, and ends all sockets that are connected
// with other addresses. It returns the number of those that [Connections] counts. The caller still has to
// close the listeners. Remove does nothing to a namespace that captures nothing.
func Remove(namespace *os.File) (ended int, err error) {
	in, err := enter(namespace)
	if err == nil {
		defer in.close()
		ended, err = in.remove()
	}
	if err != nil {
		return ended, fmt.Errorf("end the capture of connections: %w", err)
	}
	return ended, nil
}

// remove takes the rules away last: without them, the sandbox's own servers would get the captured
// connections.
func (in *inside) remove() (ended int, err error) {
	if err := in.removeAddresses(); err != nil {
		return 0, err
	}
	err = in.end(func(_ byte, local, peer netip.AddrPort) bool {
		if isCaptured(local, peer) {
			ended++
		}
		return !local.Addr().IsLoopback() || !peer.Addr().IsLoopback()
	})
	if err != nil {
		return ended, err
	}
	return ended, in.removeRules()
}
