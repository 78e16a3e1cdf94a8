package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/names"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/sniff"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/upstream"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/rules"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// proxy6 is the IPv6 address of the explicit proxy. The IPv4 address is in [spec.ProxyServer].
const proxy6 = "fd53::1"

// isProxy is true for both addresses of the explicit proxy. They are below those of names.
func isProxy(a netip.AddrPort) bool {
	server := netip.MustParseAddrPort(spec.ProxyServer)
	return a == server || a == netip.AddrPortFrom(netip.MustParseAddr(proxy6), server.Port())
}

// errEnded is the end of a connection that the client has not caused.
var errEnded = errors.New("the network of the sandbox has changed, or its bytes are used up")

// errNoRequest is the end of a client of the proxy that has sent nothing.
var errNoRequest = errors.New("the client of the proxy has sent no request")

// serveProxy serves a client of the explicit proxy. Its requests go to any hosts, one after the other: the
// answer to a request is complete before the next request is read. CONNECT is the last request.
func (c *connection) serveProxy(ctx context.Context) {
	o, err := sniff.Read(c.client, requestTime)
	switch {
	case ctx.Err() != nil:
		c.fail(errEnded)
		return
	case err != nil && len(o.Bytes) == 0:
		c.fail(errNoRequest)
		return
	case err != nil || o.Kind != sniff.HTTP:
		c.deny("", "a client of the proxy must send requests of plain HTTP: CONNECT, or whole URLs")
		return
	}
	requests := sniff.NewProxyRequests(o, c.client, c.idle)
	for isFirst := true; ; isFirst = false {
		r, err := requests.Next()
		if err != nil && !isFirst && !errors.As(err, new(*sniff.MalformedError)) {
			c.endSession() // the client has ended
			return
		}
		if err == nil {
			c.setDestination(r, isFirst)
			err = c.judgeAimed(ctx, r, isFirst)
		}
		if err != nil {
			c.refuse(r, err)
			return
		}
		if r.IsConnect {
			c.tunnel(ctx, requests, r)
			return
		}
		if goesOn := c.exchange(ctx, requests, r); !goesOn {
			return
		}
	}
}

// setDestination makes the target of a request the destination of the connection. The event of another destination
// ends.
func (c *connection) setDestination(r *sniff.Request, isFirst bool) {
	next := Event{Time: time.Now(), Port: r.Port}
	if name, isName := c.box.Names.Name(r.Address); isName {
		next.Name = name // the client has looked the name up
	} else if r.Address.IsValid() {
		next.Address = netip.AddrPortFrom(r.Address, r.Port)
	} else {
		next.Name = c.box.fullName(r.Host)
	}
	isSame := next.Name == c.event.Name && next.Port == c.event.Port && (next.Name != "" || next.Address == c.event.Address)
	if isSame && !isFirst {
		return
	}
	if !isFirst {
		c.endSession()
		c.event.Duration = time.Since(c.event.Time)
		c.box.Report(c.event)
	}
	c.event = next
}

// endSession ends the connection to the server after a complete answer.
func (c *connection) endSession() {
	if c.session != nil {
		c.session.finish(nil)
		c.countSession()
	}
}

// judgeAimed judges a request for the destination of the connection.
func (c *connection) judgeAimed(ctx context.Context, r *sniff.Request, isFirst bool) error {
	name := c.event.Name
	switch {
	case r.IsConnect && !isFirst:
		return denied(rules.Verdict{Reason: "CONNECT needs a connection of its own"})
	case c.event.isInside():
		host := cmp.Or(name, c.event.Address.Addr().String())
		return denied(rules.Verdict{Reason: fmt.Sprintf("%s is the sandbox itself; connect to it without the proxy: add %s to NO_PROXY and no_proxy", host, host)})
	case r.IsConnect:
		return nil // tunnel judges
	case name == "":
		if r.IsUpgrade && !isFirst {
			return denied(rules.Verdict{Reason: "a request for WebSocket needs a connection of its own"})
		}
		v, refused := c.box.judgeDestination(c.event.Address)
		if refused != nil {
			return refused
		}
		c.allow(v)
		return nil
	}
	return c.judge(ctx, r, isFirst)
}

// isInside says that the destination is the sandbox itself. The proxy is outside, and cannot connect to it.
func (e *Event) isInside() bool {
	a := e.Address.Addr()
	return e.Name == "localhost" || strings.HasSuffix(e.Name, ".localhost") || a.IsLoopback() || a.IsUnspecified() || names.Reserved(a)
}

// tunnel serves CONNECT (RFC 9110, section 9.3.6). The client's bytes after it are judged like those of a
// captured connection.
func (c *connection) tunnel(ctx context.Context, requests *sniff.Requests, r *sniff.Request) {
	v, refused := c.judgeTunnel(ctx)
	var server upstream.Conn
	switch {
	case refused != nil:
		c.refuse(r, refused)
		return
	case v.Allowed && c.event.Name != "" && c.route.awaitsRequest(): // serveOpening connects
	case v.Allowed:
		c.allow(v)
		var err error
		if server, err = c.route.dial(ctx); err != nil {
			c.answerUnreached(r, err)
			return
		}
	}
	err := c.client.SetWriteDeadline(time.Now().Add(c.idle))
	if err == nil {
		_, err = io.WriteString(c.client, "HTTP/1.1 200 Connection established\r\n\r\n")
	}
	if server != nil {
		c.start(ctx, server)
	}
	switch {
	case err != nil:
		c.fail(err)
	case c.event.Name == "":
		c.session.copyRaw(requests.Rest())
	default:
		c.serveOpening(ctx, v, requests.Opening)
	}
}

// judgeTunnel judges a tunnel before its first byte. Rules for plain HTTP can judge only the requests inside.
func (c *connection) judgeTunnel(ctx context.Context) (rules.Verdict, *deniedError) {
	if c.event.Name == "" {
		return c.box.judgeDestination(c.event.Address)
	}
	v := c.box.Rules.Connect(c.event.Name, c.event.Port)
	if !v.IsHTTP {
		v = c.askEmbedder(ctx, v, "", "")
	}
	if !v.Allowed && !v.IsHTTP {
		return v, denied(v)
	}
	return v, nil
}
