package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/sniff"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/upstream"
	"github.com/sandbox-runtime/sandbox-runtime/netns/special"
)

// httpPort is the port on which no server speaks first. Many upstream proxies open no tunnel to it.
const httpPort = 80

// lateTime is how long a client has for a request, if it was silent and the upstream proxy opens no tunnel.
const lateTime = 3 * time.Second

// host is the destination as an upstream proxy gets it: the name that was judged, or a public address. It is empty for
// other addresses: these mean the network of this host.
func (c *connection) host() string {
	if c.event.Name != "" {
		return c.event.Name
	}
	a := c.event.Address.Addr()
	if special.Contains(a) || c.box.IsHost(a) {
		return ""
	}
	return a.String()
}

// upstreamFor is the upstream proxy of the destination. It is nil if there is none.
func (c *connection) upstreamFor(t upstream.Traffic) (*upstream.Proxy, error) {
	host := c.host()
	if host == "" || c.box.Upstream == nil {
		return nil, nil
	}
	p, err := c.box.Upstream.For(t, host, c.event.Port)
	if p == nil || err != nil {
		return nil, err
	}
	if reason := c.box.Upstream.Refuses(host); reason != "" {
		return nil, &upstream.ForbiddenError{Reason: reason}
	}
	return p, nil
}

// isForwarded says whether requests of plain HTTP go to an upstream proxy as whole URLs.
func (c *connection) isForwarded() bool {
	p, err := c.upstreamFor(upstream.Requests)
	return p != nil || err != nil
}

// forwarder is the upstream proxy that gets a request as a whole URL. It is nil if the request goes to the server, also
// through a tunnel, as those for WebSocket do (RFC 6455, section 4.1).
func (c *connection) forwarder(r *sniff.Request) (*upstream.Proxy, error) {
	if r.IsUpgrade {
		return nil, nil
	}
	p, err := c.upstreamFor(upstream.Requests)
	switch { // some proxies read methods in any case
	case p != nil && strings.EqualFold(r.Method, http.MethodTrace):
		return nil, &upstream.ForbiddenError{Reason: "the answer to TRACE can have the password of the proxy"}
	case p != nil && strings.EqualFold(r.Method, http.MethodConnect):
		return nil, &upstream.ForbiddenError{Reason: "the method can open a tunnel that no rule has judged; write CONNECT"}
	}
	return p, err
}

// isExchanged says whether a request is sent after the answer to the one before: to an upstream proxy, not in a tunnel.
func (c *connection) isExchanged(r *sniff.Request) bool {
	if c.session != nil {
		return c.session.forwarder != nil
	}
	return !r.IsUpgrade && c.isForwarded()
}

// awaitsRequest says that a silent client gets no tunnel early: it will send a request of plain HTTP.
func (c *connection) awaitsRequest() bool { return c.event.Port == httpPort && c.isForwarded() }

// tunnelThrough asks an upstream proxy for a tunnel to the destination.
func (c *connection) tunnelThrough(ctx context.Context, p *upstream.Proxy) (upstream.Conn, error) {
	conn, err := c.dialProxy(ctx, p)
	if err != nil {
		return nil, err
	}
	destination := net.JoinHostPort(c.host(), strconv.Itoa(int(c.event.Port)))
	if err := p.Connect(ctx, conn, destination); err != nil {
		reset(tcpSocket(conn))
		return nil, err
	}
	return conn, nil
}

// dialProxy connects to an upstream proxy.
func (c *connection) dialProxy(ctx context.Context, p *upstream.Proxy) (upstream.Conn, error) {
	c.event.Upstream = p.String()
	return p.Dial(ctx, c.box.Resolver)
}

// sendHead sends the head of a request to the server, or to the upstream proxy.
func (c *connection) sendHead(r *sniff.Request) error {
	f := c.session.forwarder
	if f == nil {
		return r.SendHead(c.session)
	}
	authority := c.host()
	if c.event.Address.Addr().Is6() && c.event.Name == "" {
		authority = "[" + authority + "]"
	}
	if c.event.Port != httpPort {
		authority = fmt.Sprintf("%s:%d", authority, c.event.Port)
	}
	return r.SendProxyHead(c.session, authority, f.Authorization())
}

// lateRequest reads the first bytes of a silent client after an upstream proxy has refused a tunnel. A client that
// speaks plain HTTP needs none.
func (c *connection) lateRequest(refusal error, read func(time.Duration) (sniff.Opening, error)) (sniff.Opening, error) {
	var refused *upstream.RefusedError
	if !errors.As(refusal, &refused) || !c.isForwarded() {
		return sniff.Opening{}, refusal
	}
	if o, err := read(lateTime); err == nil && o.Kind == sniff.HTTP {
		return o, nil
	}
	return sniff.Opening{}, refusal
}

// noteUnreached describes a connection that has not reached its server.
func (c *connection) noteUnreached(err error) {
	c.event.Decision, c.event.Reason = Failed, err.Error()
	var fault upstream.Error
	if errors.As(err, &fault) && fault.IsDenial() { // no rule has decided
		c.event.Decision, c.event.Rule = Denied, ""
	}
}

// missAnswer is the answer to the client of a connection that has not reached its server.
func (c *connection) missAnswer(err error) (status int, told string) {
	var fault upstream.Error
	switch {
	case errors.As(err, &fault) && fault.IsDenial():
		return http.StatusForbidden, fault.Inside()
	case fault != nil:
		return http.StatusBadGateway, fault.Inside()
	}
	server := c.event.Address.String()
	if c.event.Name != "" {
		server = fmt.Sprintf("%s:%d", c.event.Name, c.event.Port)
	}
	return http.StatusBadGateway, failureFor(server, err)
}

// hinted adds the way out to the error of a server that was not reached directly.
func (c *connection) hinted(err error) error {
	if err == nil || c.box.Hint == "" || errors.As(err, new(*deniedError)) || errors.Is(err, context.Canceled) || errors.Is(err, io.EOF) {
		return err
	}
	return fmt.Errorf("%w; %s", err, c.box.Hint)
}
