package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
)

// Arrivals are all that arrives outside. A set of nftables has each destination that a packet of the host
// had, and the servers add the names that their clients told.
type arrivals struct {
	outside *os.File
	queries string // the log of the name server

	mu    sync.Mutex
	names map[string]bool
}

// packets has a set of the destinations of TCP and UDP, and one of other packets. Messages of ICMP that
// are no pings belong to the host itself.
const packets = `table inet arrivals {
	set four { typeof ip daddr . meta l4proto . th dport; flags dynamic; size 65535; }
	set six { typeof ip6 daddr . meta l4proto . th dport; flags dynamic; size 65535; }
	set rest { typeof meta l4proto; flags dynamic; size 256; }
	chain arrive {
		type filter hook prerouting priority raw;
		iifname != "lan" accept
		meta nfproto ipv4 meta l4proto { tcp, udp } add @four { ip daddr . meta l4proto . th dport } accept
		meta nfproto ipv6 meta l4proto { tcp, udp } add @six { ip6 daddr . meta l4proto . th dport } accept
		meta l4proto icmp icmp type != echo-request accept
		meta l4proto icmpv6 icmpv6 type != echo-request accept
		add @rest { meta l4proto }
	}
}`

func (w *networkWorld) recordArrivals(t *testing.T, queries string) *arrivals {
	t.Helper()
	netnstest.Shell(t, w.outside, "nft '"+packets+"'")
	return &arrivals{outside: w.outside, queries: queries, names: map[string]bool{}}
}

// add adds a name that a client has told to a server.
func (a *arrivals) add(protocol, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.names[protocol+" "+name] = true
}

// all lists the destinations of packets, as in "9.9.9.9 tcp 443", the names in queries, as in
// "dns web.test", and the names that servers were told, as in "tls web.test".
func (a *arrivals) all(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, set := range []string{"four", "six", "rest"} {
		var listed struct {
			Nftables []struct {
				Set struct{ Elem []json.RawMessage }
			}
		}
		decode(t, netnstest.Shell(t, a.outside, "nft -j list set inet arrivals "+set), &listed)
		for _, l := range listed.Nftables {
			for _, e := range l.Set.Elem {
				var tuple struct{ Concat []any }
				if json.Unmarshal(e, &tuple) == nil && len(tuple.Concat) > 0 {
					all = append(all, strings.TrimSuffix(fmt.Sprintln(tuple.Concat...), "\n"))
				} else {
					all = append(all, "packets of the protocol "+string(e))
				}
			}
		}
	}
	for line := range strings.Lines(content(t, a.queries)) {
		if _, query, ok := strings.Cut(line, "query["); ok {
			all = append(all, "dns "+strings.Fields(query)[1])
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for name := range a.names {
		all = append(all, name)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
