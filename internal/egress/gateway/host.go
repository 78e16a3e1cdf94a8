package gateway

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
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
	return slices.Contains(h.all, a.Unmap().WithZone(""))
}
