package source

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/publicsuffix"
)

// refusedError is a request that a rule of this package forbids.
type refusedError struct{ reason string }

func (e *refusedError) Error() string { return e.reason }

// guard sees each request of a registry below go-containerregistry, also those for tokens and those behind redirects.
// It holds the rules about plain HTTP and credentials. v0.22.1 of the library sends the credentials to each token
// server that a registry names, and falls back to plain HTTP for private addresses.
type guard struct {
	inner http.RoundTripper
	// host is the HOST[:PORT] of the registry.
	host string
	// plain and tokens are the hosts of Options.PlainHTTP and Options.TokenHosts.
	plain, tokens []string
	// stall is the time limit of bodies.
	stall time.Duration
}

// newGuard returns the lowest transport of one registry.
func newGuard(host string, o Options) *guard {
	dialer := net.Dialer{Timeout: o.patience.answer}
	return &guard{host: host, plain: o.PlainHTTP, tokens: o.TokenHosts, stall: o.patience.stall, inner: &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            dialer.DialContext,
		TLSClientConfig:        &tls.Config{RootCAs: o.RootCAs, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    o.patience.answer,
		ResponseHeaderTimeout:  o.patience.answer,
		MaxResponseHeaderBytes: 64 << 10,
		MaxConnsPerHost:        2 * parallel,
		DisableCompression:     true, // the digest is of the bytes as they are sent
		ForceAttemptHTTP2:      true,
	}}
}

func (g *guard) close() {
	if t, ok := g.inner.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
}

func (g *guard) RoundTrip(request *http.Request) (*http.Response, error) {
	if err := g.check(request); err != nil {
		if request.Body != nil {
			err = errors.Join(err, request.Body.Close())
		}
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(request.Context())
	withheld := request.Header.Get("Authorization") != "" && !g.trusted(request.URL)
	request = request.Clone(ctx)
	if withheld {
		request.Header.Del("Authorization")
	}
	response, err := g.inner.RoundTrip(request)
	if err != nil {
		cancel(err)
		return nil, err
	}
	chooseChallenge(response.Header)
	response.Body = watch(ctx, cancel, response.Body, g.stall)
	if withheld && (response.StatusCode == http.StatusUnauthorized || response.StatusCode == http.StatusForbidden) {
		response.Body.Close()
		return nil, g.withheld(request.URL)
	}
	return response, nil
}

func (g *guard) check(request *http.Request) error {
	u := request.URL
	switch u.Scheme {
	case "https":
	case "http":
		if !isLoopback(u.Hostname()) && !slices.Contains(g.plain, u.Host) {
			return &refusedError{fmt.Sprintf("%s is not asked without TLS; allow plain HTTP for this host if you trust the network", u.Host)}
		}
	default:
		return &refusedError{fmt.Sprintf("unsupported scheme %q of %s; use https", line(u.Scheme, 20), u.Host)}
	}
	if u.Host != g.host && isInside(u.Hostname()) && !isInside(hostname(g.host)) && !slices.Contains(g.tokens, u.Host) {
		return &refusedError{fmt.Sprintf("registry %s leads to %s, an address inside the network of this host", g.host, u.Host)}
	}
	// A refresh token is in the body.
	if request.Body != nil && request.Body != http.NoBody && !g.trusted(u) {
		return g.withheld(u)
	}
	return nil
}

func (g *guard) withheld(u *url.URL) error {
	return &refusedError{fmt.Sprintf("registry %s asks for its credentials at %s, another site; they were not sent there; allow this token server if it belongs to the registry", g.host, u.Host)}
}

// trusted says whether a host may get the credentials of the registry.
func (g *guard) trusted(u *url.URL) bool {
	if strings.EqualFold(u.Host, g.host) || slices.Contains(g.tokens, u.Host) {
		return true
	}
	return u.Scheme == "https" && sameSite(u.Hostname(), hostname(g.host))
}

// sameSite says whether two names have the same owner by the list of public suffixes, such as index.docker.io and
// auth.docker.io.
func sameSite(a, b string) bool {
	for _, h := range []string{a, b} {
		if _, err := netip.ParseAddr(h); err == nil || isLoopback(h) {
			return false
		}
	}
	siteA, errA := publicsuffix.EffectiveTLDPlusOne(strings.ToLower(a))
	siteB, errB := publicsuffix.EffectiveTLDPlusOne(strings.ToLower(b))
	return errA == nil && errB == nil && siteA == siteB
}

func hostname(host string) string { return (&url.URL{Host: host}).Hostname() }

func isLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.Unmap().IsLoopback()
}

// carrier has the addresses behind a NAT of a provider, which some clouds use for their services (RFC 6598).
var carrier = netip.MustParsePrefix("100.64.0.0/10")

// isInside says whether a literal address leads into the network of this host. Names are not resolved here.
func isInside(host string) bool {
	addr, err := netip.ParseAddr(host)
	if err != nil {
		name := strings.ToLower(strings.TrimSuffix(host, "."))
		return name == "localhost" || strings.HasSuffix(name, ".localhost")
	}
	addr = addr.Unmap()
	return carrier.Contains(addr) || addr.IsLoopback() || addr.IsPrivate() || addr.IsLinkLocalUnicast() || addr.IsUnspecified() || addr.IsMulticast()
}

// maxRedirects bounds the redirects of one request.
const maxRedirects = 5

// checkRedirect bounds redirects. The guard judges each of their targets.
func checkRedirect(_ *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return &refusedError{fmt.Sprintf("more than %d redirects", maxRedirects)}
	}
	return nil
}

// isTemporary says whether the same request may get an answer later. A certificate that is wrong stays wrong, and so
// does a name that does not exist.
func isTemporary(err error) bool {
	var certificate *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var dns *net.DNSError
	// The resolver has asked each name server more than once itself (resolv.conf(5), attempts).
	if errors.As(err, &certificate) || errors.As(err, &record) || errors.As(err, &dns) {
		return false
	}
	// net/http has no type for this error.
	return !strings.Contains(err.Error(), "server gave HTTP response to HTTPS client")
}
