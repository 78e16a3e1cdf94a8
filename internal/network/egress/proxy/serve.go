package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/sniff"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/upstream"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/rules"
)

// The time that a client has for its first byte.
const (
	// silentTime: then the server may have to speak first, and the proxy connects to it.
	silentTime = 20 * time.Millisecond
	// deniedTime: then the connection is reset. A client of plain HTTP gets the reason before.
	deniedTime = 50 * time.Millisecond
	// askTime: then the embedder is asked about the connection. A request within this time has a method and a
	// path for the question.
	askTime = 500 * time.Millisecond
	// requestTime: the rules allow plain HTTP only.
	requestTime = 10 * time.Second
)

// A connection is one captured connection.
type connection struct {
	box     *Sandbox
	client  *net.TCPConn
	idle    time.Duration
	event   Event
	route   route       // to the destination of the event
	session *session    // nil: not connected to the server
	forget  func() bool // ends the watch of the context for the session
}

// Serve serves a captured connection until both sides have ended. The local address of the connection
// is its destination. The end of the context resets the connection.
func Serve(ctx context.Context, client *net.TCPConn, box *Sandbox) {
	serve(ctx, client, box, idleTime)
}

func serve(ctx context.Context, client *net.TCPConn, box *Sandbox, idle time.Duration) {
	c := &connection{box: box, client: client, idle: idle, event: Event{Time: time.Now()}}
	c.route = route{box, &c.event}
	defer func() { box.Report(c.event) }()
	defer c.end()
	destination := client.LocalAddr().(*net.TCPAddr).AddrPort() //nolint:forcetypeassert // of TCP
	destination = netip.AddrPortFrom(destination.Addr().Unmap(), destination.Port())
	c.event.Port = destination.Port()
	name, isName := box.Names.Name(destination.Addr())
	if isName {
		c.event.Name = name
	} else {
		c.event.Address = destination
	}
	defer context.AfterFunc(ctx, func() { reset(client) })()
	setBuffers(client, box.ClientBuffer)
	switch {
	case isProxy(destination):
		c.serveProxy(ctx)
	case isName:
		c.serveOpening(ctx, box.Rules.Connect(name, destination.Port()), func(wait time.Duration) (sniff.Opening, error) {
			return sniff.Read(client, wait)
		})
	default:
		c.serveAddress(ctx, destination)
	}
}

func (c *connection) end() {
	_ = c.client.Close() // a connection with an error was reset before
	c.countSession()
	c.event.Duration = time.Since(c.event.Time)
}

// countSession counts the bytes of the session, which has ended.
func (c *connection) countSession() {
	if c.session == nil {
		return
	}
	c.forget()
	c.event.Sent += c.session.sent.Load()
	c.event.Received += c.session.received.Load()
	if c.event.Reason == "" && c.session.isTimeOut() {
		c.event.Reason = "the connection was idle"
	}
	c.session = nil
}

// deny resets the connection.
func (c *connection) deny(rule, reason string) {
	c.event.Decision, c.event.Rule, c.event.Reason = Denied, rule, reason
	c.abort()
}

// fail resets the connection. One that has a server stays allowed.
func (c *connection) fail(err error) {
	if c.session != nil {
		c.session.finish(err)
		return
	}
	c.noteUnreached(err)
	if denied, ok := errors.AsType[*deniedError](err); ok {
		c.event.Decision, c.event.Rule = Denied, denied.rule
	}
	c.abort()
}

func (c *connection) abort() {
	reset(c.client)
	if c.session != nil {
		c.session.finish(net.ErrClosed)
	}
}

func (c *connection) allow(v rules.Verdict) {
	c.event.Decision, c.event.Rule = Allowed, v.Rule
}

// serveAddress serves a connection without a name.
func (c *connection) serveAddress(ctx context.Context, to netip.AddrPort) {
	v, refused := c.box.judgeDestination(to)
	if refused != nil {
		c.denySoon(refused)
		return
	}
	c.allow(v)
	server, err := c.route.dial(ctx)
	if err != nil {
		c.fail(err)
		return
	}
	c.start(ctx, server)
	c.session.finish(c.session.send())
}

// denySoon gives a client of plain HTTP the reason.
func (c *connection) denySoon(refused *deniedError) {
	if o, err := sniff.Read(c.client, deniedTime); err == nil && o.Kind == sniff.HTTP {
		r, err := sniff.NewRequests(o, c.client, c.idle).Next()
		status := http.StatusForbidden
		if _, isMalformed := errors.AsType[*sniff.MalformedError](err); isMalformed {
			status = http.StatusBadRequest
		}
		c.event.Decision, c.event.Rule, c.event.Reason = Denied, refused.rule, refused.reason
		writeAnswer(c.client, r, status, refused.told)
		return
	}
	c.deny(refused.rule, refused.reason)
}

// start begins to pass on the bytes of the server.
func (c *connection) start(ctx context.Context, server upstream.Conn) {
	c.join(ctx, server)
	c.session.startReceiving()
}

// join makes the session of the client and a server.
func (c *connection) join(ctx context.Context, server upstream.Conn) {
	setBuffers(tcpSocket(server), c.box.ServerBuffer)
	c.session = newSession(c.client, server, c.idle, c.box.Meter)
	c.forget = context.AfterFunc(ctx, func() { reset(tcpSocket(server)) })
}

// connect connects to the server, unless the connection is there.
func (c *connection) connect(ctx context.Context) error {
	if c.session != nil {
		return nil
	}
	server, err := c.route.dial(ctx)
	if err != nil {
		return err
	}
	c.start(ctx, server)
	return nil
}

// waitFor is the time that a client has for its first byte.
func (c *connection) waitFor(v rules.Verdict) time.Duration {
	switch {
	case v.Allowed && c.route.awaitsRequest():
		return requestTime
	case v.Allowed:
		return silentTime
	case v.IsHTTP:
		return requestTime
	case c.canAsk(v):
		return askTime
	}
	return deniedTime
}

// canAsk says whether the embedder can allow a refused case.
func (c *connection) canAsk(v rules.Verdict) bool {
	return !v.Allowed && !v.IsDenied() && c.event.Name != "" && c.box.Ask != nil
}

// askEmbedder asks the embedder about a refused case, and waits for the answer. Without an embedder the verdict stays.
// Method and path are empty for a connection.
func (c *connection) askEmbedder(ctx context.Context, v rules.Verdict, method, path string) rules.Verdict {
	if !c.canAsk(v) {
		return v
	}
	return c.box.Ask(ctx, c.event.Name, c.event.Port, method, path)
}

// serveOpening judges the client's first bytes, which read reads. If rules allow more than plain HTTP, the server of a
// silent client can speak first. Then the client's first bytes are judged when they come.
func (c *connection) serveOpening(ctx context.Context, v rules.Verdict, read func(time.Duration) (sniff.Opening, error)) {
	o, err := read(c.waitFor(v))
	if errors.Is(err, sniff.ErrSilent) {
		if v = c.askEmbedder(ctx, v, "", ""); !v.Allowed {
			c.deny(v.Rule, v.Reason)
			return
		}
		c.allow(v)
		if failed := c.connect(ctx); failed != nil {
			if o, err = c.lateRequest(failed, read); err != nil {
				c.fail(err)
				return
			}
		}
		for errors.Is(err, sniff.ErrSilent) && !c.session.isIdle() {
			o, err = read(c.idle / 4)
		}
	}
	var malformed *sniff.MalformedError
	switch {
	case err == nil && o.Kind == sniff.HTTP:
		c.serveRequests(ctx, o)
	case !v.Allowed && (err != nil || !c.canAsk(v)):
		c.deny(v.Rule, v.Reason)
	case errors.As(err, &malformed):
		c.deny(v.Rule, malformed.Reason)
	case errors.Is(err, io.EOF), err == nil && o.Kind == sniff.Other:
		c.forward(ctx, v, o)
	case err != nil:
		c.fail(err)
	case o.ServerName == "":
		c.deny(v.Rule, fmt.Sprintf("TLS without a server name (SNI) is not allowed; ask for %s", c.event.Name))
	case !c.box.matchesHost(o.ServerName, c.event.Name):
		c.deny(v.Rule, fmt.Sprintf("TLS asks for the server name %.255q at an address of %s", o.ServerName, c.event.Name))
	default:
		c.forward(ctx, v, o)
	}
}

// forward sends the opening on, and copies both directions to their ends.
func (c *connection) forward(ctx context.Context, v rules.Verdict, o sniff.Opening) {
	if v = c.askEmbedder(ctx, v, "", ""); !v.Allowed {
		c.deny(v.Rule, v.Reason)
		return
	}
	c.allow(v)
	if err := c.connect(ctx); err != nil {
		c.fail(err)
		return
	}
	c.session.copyRaw(o.Bytes)
}

// lateTime is how long a client has for a request, if it was silent and the upstream proxy opens no tunnel.
const lateTime = 3 * time.Second

// lateRequest reads the first bytes of a silent client after an upstream proxy has refused a tunnel. A client that
// speaks plain HTTP needs none.
func (c *connection) lateRequest(refusal error, read func(time.Duration) (sniff.Opening, error)) (sniff.Opening, error) {
	var refused *upstream.RefusedError
	if !errors.As(refusal, &refused) || !c.route.isForwarded() {
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

// isExchanged says whether a request is sent after the answer to the one before: to an upstream proxy, not in a tunnel.
func (c *connection) isExchanged(r *sniff.Request) bool {
	if c.session != nil {
		return c.session.forwarder != nil
	}
	return !r.IsUpgrade && c.route.isForwarded()
}
