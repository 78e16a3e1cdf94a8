package resolver

import (
	"bufio"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"
)

// maxServers is the number of name servers that resolv.conf(5) allows.
const maxServers = 3

// hostServers reads the name servers of a resolv.conf(5). It reads the file again when the file
// has changed.
func hostServers(path string) func() []string {
	var (
		mu      sync.Mutex
		changed time.Time
		servers []string
	)
	return func() []string {
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
func readServers(path string) []string {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	var servers []string
	for lines := bufio.NewScanner(f); lines.Scan() && len(servers) < maxServers; {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(fields[1]); err == nil {
			servers = append(servers, net.JoinHostPort(a.String(), "53"))
		}
	}
	if len(servers) == 0 {
		servers = []string{"127.0.0.1:53"}
	}
	return servers
}
