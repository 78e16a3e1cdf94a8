package sniff

import (
	"bytes"
	"cmp"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// setTarget takes host and path from the target and the Host field, which must agree (RFC 9112,
// sections 3.2 and 3.3).
func (r *Request) setTarget(f fields, parsed *http.Request) error {
	var err error
	if r.Host, r.Port, err = splitHost(f.host); err != nil {
		return err
	}
	switch {
	case r.Method == http.MethodConnect:
		return malformed("CONNECT is not supported; connect to the server itself")
	case f.target == "*" && r.Method == http.MethodOptions:
		r.Path = f.target
		return nil
	case strings.HasPrefix(f.target, "/"):
		r.Path, _, _ = strings.Cut(f.target, "?")
		return nil
	}
	u, err := parseURL(f.target)
	if err != nil {
		return err
	}
	host, port, err := splitHost(u.Host)
	if err != nil {
		return err
	}
	if host != r.Host || withDefault(port) != withDefault(r.Port) || parsed.URL.Host != u.Host {
		return malformed("the target %.100q and the Host field %.100q differ", f.target, f.host)
	}
	r.Path, _, _ = strings.Cut(originForm(f.target, r.Method), "?")
	return nil
}

// parseURL reads a target that is a URL.
func parseURL(target string) (*url.URL, error) {
	u, err := url.Parse(target)
	if err != nil || u.Scheme != "http" || u.Opaque != "" || u.User != nil || u.Host == "" {
		return nil, malformed("target %.100q is not supported; use a path", target)
	}
	return u, nil
}

// originForm is the part of a URL behind the host (RFC 9112, sections 3.2.1 and 3.2.4).
func originForm(target, method string) string {
	rest := target[len("http://"):]
	i := strings.IndexAny(rest, "/?")
	switch {
	case i < 0 && method == http.MethodOptions:
		return "*"
	case i < 0:
		return "/"
	case rest[i] == '?':
		return "/" + rest[i:]
	}
	return rest[i:]
}

// setProxyTarget is setTarget for a request to a proxy: CONNECT, or a whole URL. The server gets the path.
func (r *Request) setProxyTarget(f fields, parsed *http.Request) error {
	r.IsConnect = r.Method == http.MethodConnect
	authority := f.target
	if !r.IsConnect {
		u, err := parseProxyURL(f.target)
		if err != nil {
			return err
		}
		authority = u.Host
	}
	var err error
	if r.Host, r.Address, r.Port, err = splitAuthority(authority); err != nil {
		return err
	}
	if r.IsConnect && r.Port == 0 {
		return malformed("CONNECT %.100q has no port; use NAME:PORT", f.target)
	}
	if f.host != "" || !r.IsConnect {
		host, address, port, err := splitAuthority(f.host)
		if err != nil {
			return err
		}
		isSamePort := port == r.Port || r.IsConnect && port == 0 || !r.IsConnect && withDefault(port) == withDefault(r.Port)
		if host != r.Host || address != r.Address || !isSamePort {
			return malformed("the target %.100q and the Host field %.100q differ", f.target, f.host)
		}
	}
	if r.IsConnect {
		if r.isChunked || r.length > 0 {
			return malformed("CONNECT has no body")
		}
		return nil
	}
	if parsed.URL.Host != authority {
		return malformed("the host of the target %.100q is unclear", f.target)
	}
	r.Port = withDefault(r.Port)
	origin := originForm(f.target, r.Method)
	r.Path, _, _ = strings.Cut(origin, "?")
	r.head = bytes.Replace(r.head, []byte(" "+f.target+" "), []byte(" "+origin+" "), 1)
	return nil
}

// parseProxyURL reads the target of a request to a proxy.
func parseProxyURL(target string) (*url.URL, error) {
	switch {
	case strings.HasPrefix(target, "/") || target == "*":
		return nil, malformed("a proxy needs the whole URL, and the target is %.100q", target)
	case !strings.HasPrefix(target, "http://"):
		return nil, malformed("the target %.100q is not a URL of plain HTTP; use CONNECT for other protocols", target)
	}
	return parseURL(target)
}

func withDefault(port uint16) uint16 {
	return cmp.Or(port, 80)
}

// maxHost is the length of the longest name of a host, in bytes (RFC 1035, section 2.3.4).
const maxHost = 253

// splitAuthority reads what splitHost reads, and addresses. Other forms of an address, such as 0x7f.1, are
// names here: no rule allows such a name.
func splitAuthority(text string) (host string, address netip.Addr, port uint16, err error) {
	if inside, rest, isBracketed := strings.Cut(strings.TrimPrefix(text, "["), "]"); isBracketed && strings.HasPrefix(text, "[") {
		address, err = netip.ParseAddr(inside)
		if err != nil || !address.Is6() || address.Zone() != "" || rest != "" && rest[0] != ':' {
			return "", netip.Addr{}, 0, malformed("host %.100q is not an IPv6 address; use [ADDRESS]:PORT without a zone", text)
		}
		_, port, err = splitHost("x" + rest)
		return address.String(), address, port, err
	}
	if host, port, err = splitHost(text); err != nil {
		return "", netip.Addr{}, 0, err
	}
	if len(host) > maxHost {
		return "", netip.Addr{}, 0, malformed("the name of the host has %d bytes; the most are %d", len(host), maxHost)
	}
	literal, _, _ := strings.Cut(text, ":")
	if a, err := netip.ParseAddr(literal); err == nil {
		address = a
	}
	return host, address, port, nil
}

// splitHost reads NAME or NAME:PORT.
func splitHost(text string) (host string, port uint16, err error) {
	host, number, hasPort := strings.Cut(text, ":")
	if hasPort {
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil || n == 0 {
			return "", 0, malformed("host %.100q has no valid port; use NAME or NAME:PORT", text)
		}
		port = uint16(n)
	}
	const usual = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."
	host = strings.TrimSuffix(host, ".")
	if host == "" || strings.ContainsFunc(host, func(r rune) bool { return !strings.ContainsRune(usual, r) }) {
		return "", 0, malformed("host %.100q is not a name", text)
	}
	return strings.ToLower(host), port, nil
}
