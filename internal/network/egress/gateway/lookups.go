package gateway

import (
	"context"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/time/rate"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/nameserver"
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

// newResolver is the resolver of a box. Each connection of a sandbox to a name makes two queries or more, unless answers
// are kept. The ports are shared, so the queries take few entries of the host's table of connections. A connection to a name
// server, for an answer that does not fit a packet, takes an entry of its own.
func newResolver(ask nameserver.Exchange) *net.Resolver {
	queries := rate.NewLimiter(nameserver.QueryRate, nameserver.QueryBurst)
	streams := rate.NewLimiter(nameserver.StreamRate, nameserver.StreamBurst)
	kept := nameserver.NewAnswers(func(ctx context.Context, server netip.AddrPort, query []byte) ([]byte, error) {
		if !queries.Allow() {
			return nil, nameserver.ErrTooMany
		}
		return ask(ctx, server, query)
	})
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		server, err := netip.ParseAddrPort(address)
		if err != nil {
			return nil, err
		}
		if strings.HasPrefix(network, "udp") {
			return nameserver.Dial(ctx, server, kept.Ask), nil
		}
		if !queries.Allow() || !streams.Allow() {
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
