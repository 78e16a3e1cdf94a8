package resolver

import (
	"bufio"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"
)

// maxServers is the number of name servers that resolv.conf(5) allows.
const maxServers = 3

// port is that of name servers.
const port = 53

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
			changed, servers = info.ModTime(), readServers(path)
		}
		return servers
	}
}

// readServers has the loopback address if the file names no server, as resolv.conf(5) says.
func readServers(path string) []netip.AddrPort {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	var servers []netip.AddrPort
	for lines := bufio.NewScanner(f); lines.Scan() && len(servers) < maxServers; {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(fields[1]); err == nil {
			servers = append(servers, netip.AddrPortFrom(a, port))
		}
	}
	if len(servers) == 0 {
		servers = []netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)}
	}
	return servers
}
