package gateway

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// hostTime is how long the list of the host's addresses is used.
const hostTime = time.Second

// hostAddresses are the addresses of the host. The zero value is ready.
type hostAddresses struct {
	mu   sync.Mutex
	read time.Time
	all  []netip.Addr
}

// contains is true for an address of the host. It is true for all addresses if the host's cannot be read.
func (h *hostAddresses) contains(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	return h.hasInterface(a) || isLocal(a)
}

// hasInterface is true for an address of an interface.
func (h *hostAddresses) hasInterface(a netip.Addr) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.read.IsZero() || time.Since(h.read) > hostTime {
		found, err := net.InterfaceAddrs()
		if err != nil {
			return true
		}
		h.all, h.read = h.all[:0], time.Now()
		for _, f := range found {
			if p, err := netip.ParsePrefix(f.String()); err == nil {
				h.all = append(h.all, p.Addr().Unmap())
			}
		}
	}
	return slices.Contains(h.all, a)
}

// isLocal says whether the host itself gets the connections to an address. Its local routes can cover more
// addresses than its interfaces have: all addresses of a network on lo, for example.
func isLocal(a netip.Addr) bool {
	routes, err := netlink.RouteGet(a.AsSlice())
	for _, unreachable := range []error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL, unix.EAFNOSUPPORT, unix.EOPNOTSUPP} {
		if errors.Is(err, unreachable) {
			return false // connect(2) gets the same error
		}
	}
	return err != nil || slices.ContainsFunc(routes, func(r netlink.Route) bool {
		return r.Type == unix.RTN_LOCAL || r.Type == unix.RTN_ANYCAST
	})
}
