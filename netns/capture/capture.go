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

// Listeners are the sockets of a namespace that captures: those of IPv4, and those of IPv6 if the
// namespace has IPv6.
type Listeners struct {
	// Streams accept the captured TCP connections: one socket for each family with TPROXY, and one for each
	// family and port without.
	Streams []*os.File
	// DNSPackets get the queries over UDP, one socket for each family. Each message comes with the asked
	// address (IP_PKTINFO, IPV6_PKTINFO). The answer must name this address as its source in the same way.
	DNSPackets []*os.File
	// DNSStreams accept the connections to port 53, one socket for each family.
	DNSStreams []*os.File
}

// Close closes all sockets. The namespace still captures: with TPROXY, connections are refused. Without
// TPROXY, a server inside can take a port then, but no connection to a foreign address gets an answer.
func (l *Listeners) Close() error {
	return errors.Join(closeAll(&l.Streams), closeAll(&l.DNSPackets), closeAll(&l.DNSStreams))
}

func closeAll(files *[]*os.File) error {
	var errs []error
	for _, f := range *files {
		errs = append(errs, f.Close())
	}
	*files = nil
	return errors.Join(errs...)
}

// MaxPorts is how many ports can be captured without TPROXY. Port 53 does not count.
const MaxPorts = 64

// ErrReopen means that the namespace has a listener for each port, since the kernel lacks TPROXY. To
// change the ports, the caller must close the listeners, and open the capture again.
var ErrReopen = errors.New("the captured ports cannot change while the listeners are open")

// Open makes the namespace capture connections to the ports, and returns the sockets. lo must be up, as
// [netns.Create] leaves lo. In a namespace that captures already, Open replaces the sockets: the
// caller must have closed the earlier ones. If Open fails, the namespace captures nothing.
//
// The error wraps [errors.ErrUnsupported] if the kernel lacks a part of nftables that the ports need:
// without TPROXY, more than [MaxPorts] ports are refused. The caller needs CAP_SYS_ADMIN in its user
// namespace, and CAP_NET_ADMIN in the namespace's.
func Open(namespace *os.File, ports []spec.PortRange) (*Listeners, error) {
	l, err := open(namespace, ports, (*editor).captureWithTPROXY)
	return l, operation("capture connections", err)
}

// A method makes a namespace capture, and opens the listeners for streams. Its error wraps
// [errors.ErrUnsupported] if the kernel lacks a part of the method.
type method func(*editor, *Listeners, []family, []spec.PortRange) error

// open captures with the first method, or without TPROXY if the kernel lacks that method.
func open(namespace *os.File, ports []spec.PortRange, first method) (*Listeners, error) {
	merged, err := merge(ports)
	if err != nil {
		return nil, err
	}
	in, err := enter(namespace)
	if err != nil {
		return nil, err
	}
	defer in.close()
	l := &Listeners{}
	if err := in.openCapture(l, merged, first); err != nil {
		closed := l.Close()
		_, removed := in.remove()
		return nil, errors.Join(err, closed, removed)
	}
	return l, nil
}

// openCapture adds the routes last: before, no packet to a foreign address passes.
func (in *editor) openCapture(l *Listeners, ports []spec.PortRange, first method) error {
	families, err := in.addAddresses()
	if err != nil {
		return err
	}
	if err := netns.Do(in.namespace, func() error { return l.listenForQueries(families) }); err != nil {
		return err
	}
	err = first(in, l, families, ports)
	if errors.Is(err, errors.ErrUnsupported) {
		err = in.captureAtPorts(l, families, ports)
	}
	if err != nil {
		return err
	}
	return in.addRoutes(families)
}

// HasTPROXY says whether Open captures with TPROXY, and without a listener for each port. The error wraps
// [errors.ErrUnsupported] if the kernel can capture in neither way. HasTPROXY tries this in a network
// namespace of its own.
func HasTPROXY() (has bool, err error) {
	namespace, err := netns.Create()
	if err != nil {
		return false, err
	}
	defer namespace.Close()
	l, err := open(namespace, nil, func(in *editor, l *Listeners, families []family, ports []spec.PortRange) error {
		err := in.captureWithTPROXY(l, families, ports)
		has = err == nil
		return err
	})
	if err != nil {
		return false, fmt.Errorf("capture connections: %w", err)
	}
	return has, l.Close()
}

// SetPorts changes the ports of captured connections in one step. SetPorts ends the connections to
// ports that are not in the new set. Without TPROXY, the error wraps [ErrReopen] if the ports differ from
// the present ones, and nothing changes.
func SetPorts(namespace *os.File, ports []spec.PortRange) error {
	return operation("change the captured ports", setPorts(namespace, ports))
}

func setPorts(namespace *os.File, ports []spec.PortRange) error {
	merged, err := merge(ports)
	if err != nil {
		return err
	}
	in, err := enter(namespace)
	if err != nil {
		return err
	}
	defer in.close()
	err = in.writePorts(merged)
	switch {
	case errors.Is(err, unix.ENOENT):
		return in.checkPorts(merged)
	case err != nil:
		return err
	}
	return in.endSockets(func(protocol byte, local, peer netip.AddrPort) bool {
		return protocol == unix.IPPROTO_TCP && (isClosed(merged, local) || isClosed(merged, peer))
	})
}

// isClosed says whether no connection to the end may be.
func isClosed(ports []spec.PortRange, end netip.AddrPort) bool {
	return !isLocal(end.Addr()) && end.Port() != dnsPort && !contains(ports, end.Port())
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
func isCaptured(local, peer netip.AddrPort) bool {
	return isLocal(local.Addr()) && !isLocal(peer.Addr())
}

// Remove leaves the namespace with its loopback addresses only, and ends all sockets that are connected
// with other addresses. It returns the number of those that [Connections] counts. The caller still has to
// close the listeners. Until then those of a kernel without TPROXY accept connections to loopback
// addresses, which the caller must refuse. Remove does nothing to a namespace that captures nothing.
func Remove(namespace *os.File) (ended int, err error) {
	in, err := enter(namespace)
	if err == nil {
		defer in.close()
		ended, err = in.remove()
	}
	return ended, operation("end the capture of connections", err)
}

// remove takes the rules away last: without them, the sandbox's own servers would get the captured
// connections.
func (in *editor) remove() (ended int, err error) {
	if err := in.removeAddresses(); err != nil {
		return 0, err
	}
	err = in.endSockets(func(_ byte, local, peer netip.AddrPort) bool {
		if isCaptured(local, peer) {
			ended++
		}
		return !local.Addr().IsLoopback() || !peer.Addr().IsLoopback()
	})
	if err != nil {
		return ended, err
	}
	in.dropTable()
	return ended, in.flush()
}
