package upstream

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpproxy"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Proxies choose the upstream proxy of a destination. A nil Proxies chooses none.
type Proxies struct {
	choose func(*url.URL) (*url.URL, error)
	// hosts are those of the proxies themselves.
	hosts []string
}

// New reads a setting.
func New(u spec.Upstream) (*Proxies, error) {
	p := &Proxies{}
	for _, text := range []string{u.HTTP, u.HTTPS} {
		if text == "" {
			continue
		}
		parsed, err := spec.ParseUpstreamURL(text)
		if err != nil {
			return nil, fmt.Errorf("upstream proxy: %w", err)
		}
		p.hosts = append(p.hosts, strings.TrimSuffix(parsed.Hostname(), "."))
	}
	p.choose = (&httpproxy.Config{HTTPProxy: u.HTTP, HTTPSProxy: u.HTTPS, NoProxy: u.NoProxy}).ProxyFunc()
	return p, nil
}

// A Traffic is the kind of traffic to a destination.
type Traffic string

// The kinds of traffic, by the scheme of a URL.
const (
	Requests Traffic = "http"  // requests of plain HTTP
	Tunnel   Traffic = "https" // all else
)

// For chooses the proxy of a destination, which is a name or an address. It is nil for a destination without a proxy.
func (p *Proxies) For(t Traffic, host string, port uint16) (*Proxy, error) {
	if p == nil {
		return nil, nil
	}
	u, err := p.choose(&url.URL{Scheme: string(t), Host: net.JoinHostPort(host, strconv.Itoa(int(port)))})
	if u == nil || err != nil {
		return nil, err
	}
	return newProxy(u)
}

// Refuses is the reason why a destination must not be asked of an upstream proxy: it would be the proxy's own host or a
// service for the machine that the proxy runs on. The reason is empty for all others. The proxy looks names up, so another
// name can lead there, too.
func (p *Proxies) Refuses(host string) string {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	isHost := func(own string) bool { return host == own || sameAddress(host, own) }
	isInside := func(domain string) bool { return host == domain || strings.HasSuffix(host, "."+domain) }
	switch {
	case slices.ContainsFunc(p.hosts, isHost):
		return host + " is the upstream proxy itself"
	case slices.ContainsFunc(ownNames, isInside):
		return host + " is a name of the upstream proxy's own machine"
	case slices.ContainsFunc(metadataNames, isInside):
		return host + " is the metadata service of a cloud, which would answer for the machine of the upstream proxy"
	}
	return ""
}

func sameAddress(a, b string) bool {
	x, err := netip.ParseAddr(a)
	if err != nil {
		return false
	}
	y, err := netip.ParseAddr(b)
	return err == nil && x.Unmap() == y.Unmap()
}

// ownNames are names that each machine has for itself (RFC 6761, section 6.3; hosts(5)), with the names below them.
var ownNames = []string{
	"localhost", "localdomain", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback", "broadcasthost",
	"host.docker.internal", "gateway.docker.internal", "host.containers.internal",
}

// metadataNames are those of the services that give credentials to the machines of clouds.
var metadataNames = []string{
	"metadata", "metadata.google.internal", "metadata.goog", // Google
	"instance-data", "instance-data.ec2.internal", // Amazon
	"metadata.azure.internal", "metadata.azure.com", // Azure
	"metadata.tencentyun.com", "metadata.platformequinix.com", "metadata.packet.net",
}
