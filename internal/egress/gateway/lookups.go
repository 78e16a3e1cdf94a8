package gateway

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/nameserver"
)

// The bounds of the queries to name servers for one box. Each connection of a sandbox to a name makes two queries or
// more. The ports are shared, so the queries take few entries of the host's table of connections. A connection to a
// name server, for an answer that does not fit a packet, takes an entry of its own.
const (
	lookupRate, lookupBurst = 200, 500
	streamRate, streamBurst = 8, 32
)

// searchDomains are the search domains of the host. A host without a readable file has none.
func searchDomains() []string {
	c, err := nameserver.ReadConfig("/etc/resolv.conf")
	if err != nil {
		return nil
	}
	for i, domain := range c.Search {
		c.Search[i] = strings.ToLower(domain)
	}
	return c.Search
}

// newResolver is the resolver of a box.
func newResolver(pool *nameserver.Pool) *net.Resolver {
	queries, streams := nameserver.NewBucket(lookupRate, lookupBurst), nameserver.NewBucket(streamRate, streamBurst)
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		server, err := netip.ParseAddrPort(address)
		if err != nil {
			return nil, err
		}
		if !queries.Take(time.Now()) {
			return nil, nameserver.ErrTooMany
		}
		if strings.HasPrefix(network, "udp") {
			return pool.Dial(ctx, server), nil
		}
		if !streams.Take(time.Now()) {
			return nil, nameserver.ErrTooMany
		}
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if tcp, ok := c.(*net.TCPConn); ok {
			err = tcp.SetLinger(0) // the host's table of connections keeps a reset connection for a shorter time
		}
		return c, err
	}}
}
