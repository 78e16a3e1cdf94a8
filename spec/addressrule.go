package spec

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// An AddressRule names destinations by their addresses.
type AddressRule struct {
	Prefix netip.Prefix
	// Ports are the ports of TCP and UDP. The zero value is all ports, and all protocols.
	Ports PortRange
}

// Covers says whether the rule allows all that another rule allows.
func (r AddressRule) Covers(other AddressRule) bool {
	if r.Prefix.Bits() > other.Prefix.Bits() || !r.Prefix.Contains(other.Prefix.Addr()) {
		return false
	}
	all := PortRange{}
	return r.Ports == all || other.Ports != all && r.Ports.First <= other.Ports.First && other.Ports.Last <= r.Ports.Last
}

// A PortRange is the ports from First to Last.
type PortRange struct{ First, Last uint16 }

// ParseAddressRule reads ADDRESS, ADDRESS/BITS, either with :PORT or :FIRST-LAST. An IPv6 address with
// a port stands in brackets.
func ParseAddressRule(text string) (AddressRule, error) {
	address, ports := text, ""
	if rest, isBracket := strings.CutPrefix(text, "["); isBracket {
		inside, after, isClosed := strings.Cut(rest, "]")
		if !isClosed {
			return AddressRule{}, fmt.Errorf("%q has no ]", text)
		}
		bits, colon, hasPorts := strings.Cut(after, ":")
		if hasPorts && colon == "" {
			return AddressRule{}, fmt.Errorf("%q has no port after the colon", text)
		}
		address, ports = inside+bits, colon
	} else if i := strings.LastIndexByte(text, ':'); i >= 0 && strings.Count(text, ":") == 1 {
		address, ports = text[:i], text[i+1:]
		if ports == "" {
			return AddressRule{}, fmt.Errorf("%q has no port after the colon", text)
		}
	}
	prefix, err := parsePrefix(address)
	if err != nil {
		return AddressRule{}, fmt.Errorf("%q: %w", text, err)
	}
	r := AddressRule{Prefix: prefix}
	if ports != "" {
		if r.Ports, err = ParsePorts(ports); err != nil {
			return AddressRule{}, fmt.Errorf("%q: %w", text, err)
		}
	}
	return r, nil
}

// useless returns the reason why no packet to these addresses ever leaves a sandbox. It is empty if
// packets can.
func (r AddressRule) useless() string {
	switch a := r.Prefix.Addr(); {
	case a.IsLoopback():
		return "the sandbox itself has this address, and no rule is needed to reach it; a service of the host must listen at another address"
	case a.IsUnspecified() && r.Prefix.IsSingleIP():
		return "no host has this address"
	}
	return ""
}

func parsePrefix(text string) (netip.Prefix, error) {
	var prefix netip.Prefix
	if strings.Contains(text, "/") {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return prefix, errors.New("no address range, such as 192.0.2.0/24")
		}
		prefix = p
	} else {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return prefix, errors.New(`no IP address and no address range; names need the network "proxied"`)
		}
		if a.Zone() != "" {
			return prefix, errors.New("it has a zone; use the address without the zone")
		}
		prefix = netip.PrefixFrom(a, a.BitLen())
	}
	if prefix.Addr().Is4In6() {
		return prefix, fmt.Errorf("it is an IPv4 address in IPv6 form; use %s", prefix.Addr().Unmap())
	}
	if prefix != prefix.Masked() {
		return prefix, fmt.Errorf("it has bits below its mask; the range is %s", prefix.Masked())
	}
	return prefix, nil
}

// ParsePorts reads PORT or FIRST-LAST.
func ParsePorts(text string) (PortRange, error) {
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		last = first
	}
	from, err := parsePort(first)
	if err != nil {
		return PortRange{}, err
	}
	to, err := parsePort(last)
	if err != nil {
		return PortRange{}, err
	}
	if from > to {
		return PortRange{}, fmt.Errorf("the ports %s go down", text)
	}
	return PortRange{from, to}, nil
}

func parsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is no port from 1 to 65535", text)
	}
	return uint16(n), nil
}
