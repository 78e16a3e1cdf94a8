package resolver

import (
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/nameserver"
)

// hostServers reads the name servers of a resolv.conf(5). It reads the file again when the file
// has changed.
func hostServers(path string) func() []netip.AddrPort {
	var (
		mu      sync.Mutex
		changed time.Time
		servers []netip.AddrPort
	)
	return func() []netip.AddrPort {
		mu.Lock()
		defer mu.Unlock()
		info, err := os.Stat(path)
		if err != nil {
			return servers
		}
		if !info.ModTime().Equal(changed) {
			config, err := nameserver.ReadConfig(path)
			if err != nil {
				return servers
			}
			changed, servers = info.ModTime(), config.Servers
		}
		return servers
	}
}
