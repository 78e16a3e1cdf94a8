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

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/sniff"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/upstream"
	"github.com/sandbox-runtime/sandbox-runtime/netns/special"
)

// httpPort is the port on which no server speaks first. Many upstream proxies open no tunnel to it.
const httpPort = 80

// A route leads to the server of a destination, directly or through an upstream proxy.
type route struct {
	box *Sandbox
	to  *Event // the destination; the route adds the server and the upstream proxy
}

// host is the destination as an upstream proxy gets it: the name that was judged, or a public address. It is empty for
// other addresses: these mean the network of this host.
func (r route) host() string {
	if r.to.Name != "" {
		return r.to.Name
	}
	a := r.to.Address.Addr()
	if special.Contains(a) || r.box.IsHost(a) {
		return ""
	}
	return a.String()
}

// upstreamFor is the upstream proxy of the destination. It is nil if there is none.
func (r route) upstreamFor(t upstream.Traffic) (*upstream.Proxy, error) {
	host := r.host()
	if host == "" || r.box.Upstream == nil {
		return nil, nil
	}
	p, err := r.box.Upstream.For(t, host, r.to.Port)
	if p == nil || err != nil {
		return nil, err
	}
	if reason := r.box.Upstream.Refuses(host); reason != "" {
		return nil, &upstream.ForbiddenError{Reason: reason}
	}
	return p, nil
}

// isForwarded says whether requests of plain HTTP go to an upstream proxy as whole URLs.
func (r route) isForwarded() bool {
	p, err := r.upstreamFor(upstream.Requests)
	return p != nil || err != nil
}

// forwarder is the upstream proxy that gets a request as a whole URL. It is nil if the request goes to the server, also
// through a tunnel, as those for WebSocket do (RFC 6455, section 4.1).
func (r route) forwarder(q *sniff.Request) (*upstream.Proxy, error) {
	if q.IsUpgrade {
		return nil, nil
	}
	p, err := r.upstreamFor(upstream.Requests)
	switch { // some proxies read methods in any case
	case p != nil && strings.EqualFold(q.Method, http.MethodTrace):
		return nil, &upstream.ForbiddenError{Reason: "the answer to TRACE can have the password of the proxy"}
	case p != nil && strings.EqualFold(q.Method, http.MethodConnect):
		return nil, &upstream.ForbiddenError{Reason: "the method can open a tunnel that no rule has judged; write CONNECT"}
	}
	return p, err
}

// awaitsRequest says that a silent client gets no tunnel early: it will send a request of plain HTTP.
func (r route) awaitsRequest() bool { return r.to.Port == httpPort && r.isForwarded() }

// tunnelThrough asks an upstream proxy for a tunnel to the destination.
func (r route) tunnelThrough(ctx context.Context, p *upstream.Proxy) (upstream.Conn, error) {
	conn, err := r.dialProxy(ctx, p)
	if err != nil {
		return nil, err
	}
	destination := net.JoinHostPort(r.host(), strconv.Itoa(int(r.to.Port)))
	if err := p.Connect(ctx, conn, destination); err != nil {
		reset(tcpSocket(conn))
		return nil, err
	}
	return conn, nil
}

// dial connects to the server of the name, or to the address if there is no name, also through a tunnel.
func (r route) dial(ctx context.Context) (upstream.Conn, error) {
	p, err := r.upstreamFor(upstream.Tunnel)
	if err != nil {
		return nil, err
	}
	if p != nil {
		return r.tunnelThrough(ctx, p)
	}
	server, err := r.dialDirectly(ctx)
	if err != nil { // an interface with a nil pointer is not nil
		return nil, r.hinted(err)
	}
	return server, nil
}

// dialDirectly connects without an upstream proxy.
func (r route) dialDirectly(ctx context.Context) (*net.TCPConn, error) {
	if r.to.Name == "" {
		return dial(ctx, net.Dialer{Timeout: connectTime}, r.to.Address.Addr().String(), r.to.Address.Port())
	}
	server, err := r.box.dialName(ctx, r.to.Name, r.to.Port)
	if err == nil {
		r.to.Address = addressOf(server)
	}
	return server, err
}

// dialProxy connects to an upstream proxy.
func (r route) dialProxy(ctx context.Context, p *upstream.Proxy) (upstream.Conn, error) {
	r.to.Upstream = p.String()
	return p.Dial(ctx, r.box.Resolver)
}

// sendHead sends the head of a request to the server, or to the upstream proxy.
func (r route) sendHead(s *session, q *sniff.Request) error {
	f := s.forwarder
	if f == nil {
		return q.SendHead(s)
	}
	authority := r.host()
	if r.to.Address.Addr().Is6() && r.to.Name == "" {
		authority = "[" + authority + "]"
	}
	if r.to.Port != httpPort {
		authority = fmt.Sprintf("%s:%d", authority, r.to.Port)
	}
	return q.SendProxyHead(s, authority, f.Authorization())
}

// missAnswer is the answer to the client of a connection that has not reached its server.
func (r route) missAnswer(err error) (status int, told string) {
	var fault upstream.Error
	switch {
	case errors.As(err, &fault) && fault.IsDenial():
		return http.StatusForbidden, fault.Inside()
	case fault != nil:
		return http.StatusBadGateway, fault.Inside()
	}
	server := r.to.Address.String()
	if r.to.Name != "" {
		server = fmt.Sprintf("%s:%d", r.to.Name, r.to.Port)
	}
	return http.StatusBadGateway, failureFor(server, err)
}

// hinted adds the way out to the error of a server that was not reached directly.
func (r route) hinted(err error) error {
	if r.box.Hint == "" || errors.As(err, new(*deniedError)) || errors.Is(err, context.Canceled) || errors.Is(err, io.EOF) {
		return err
	}
	return fmt.Errorf("%w; %s", err, r.box.Hint)
}
