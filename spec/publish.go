package spec

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// A PublishedPort is a port of the host that leads to a port of the sandbox.
type PublishedPort struct {
	// Host is the address and the port on the host.
	Host netip.AddrPort
	// Port is the port of the sandbox.
	Port uint16
	// IsUDP is false for TCP.
	IsUDP bool
}

func (p PublishedPort) String() string {
	text := fmt.Sprintf("%s:%d", p.Host, p.Port)
	if p.IsUDP {
		text += udpSuffix
	}
	return text
}

const udpSuffix = "/udp"

// ParsePublishedPort reads [ADDRESS:]HOST:PORT[/udp]. An IPv6 address stands in brackets. Without an
// address the port is published on 127.0.0.1.
func ParsePublishedPort(text string) (PublishedPort, error) {
	p := PublishedPort{}
	rest, isUDP := strings.CutSuffix(text, udpSuffix)
	i := strings.LastIndexByte(rest, ':')
	if i < 0 {
		return p, fmt.Errorf("invalid port %q: use [ADDRESS:]HOST:PORT[/udp]", text)
	}
	address, host, inside := "127.0.0.1", rest[:i], rest[i+1:]
	if i := strings.LastIndexByte(host, ':'); i >= 0 {
		address, host = host[:i], host[i+1:]
	}
	number, err := parsePort(host)
	if err != nil {
		return p, fmt.Errorf("%q: %w", text, err)
	}
	port, err := parsePort(inside)
	if err != nil {
		return p, fmt.Errorf("%q: %w", text, err)
	}
	a, err := parseHost(address)
	if err != nil {
		return p, fmt.Errorf("%q: %w", text, err)
	}
	return PublishedPort{netip.AddrPortFrom(a, number), port, isUDP}, nil
}

// parseHost reads an address before a port.
func parseHost(text string) (netip.Addr, error) {
	inside, isClosed := strings.CutSuffix(strings.TrimPrefix(text, "["), "]")
	isBracket := isClosed && strings.HasPrefix(text, "[")
	a, err := netip.ParseAddr(inside)
	switch {
	case err != nil || isBracket != a.Is6():
		return a, fmt.Errorf("invalid address %q: use an IPv4 address, or an IPv6 address in brackets", text)
	case a.Zone() != "" || a.Is4In6():
		return a, fmt.Errorf("%q has a zone or is an IPv4 address in IPv6 form; use a plain address", text)
	}
	return a, nil
}

// maxPublish bounds the entries of Publish.
const maxPublish = 64

func (c Config) validatePublish(p *problems) {
	if len(c.Publish) > 0 && !c.permitsPublish() {
		p.add("publish", "needs a level that permits the network %q; the sensitivity %s permits %q", NetworkFull, c.Sensitivity, c.ceiling(c.Sensitivity))
	}
	if len(c.Publish) > maxPublish {
		p.add("publish", "%d are more than %d", len(c.Publish), maxPublish)
		return
	}
	var taken []PublishedPort
	for i, text := range c.Publish {
		port, err := ParsePublishedPort(text)
		if err != nil {
			p.add(fmt.Sprintf("publish[%d]", i), "%v", err)
			continue
		}
		if slices.ContainsFunc(taken, func(t PublishedPort) bool { return t.Host == port.Host && t.IsUDP == port.IsUDP }) {
			p.add(fmt.Sprintf("publish[%d]", i), "%q: the port %s of the host is published twice", text, port.Host)
		}
		taken = append(taken, port)
	}
}
