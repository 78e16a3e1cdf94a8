package gateway

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/link"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/proxy"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/rules"
)

// A connection is one captured connection. It asks the rules of its box and counts the allowed requests. It
// keeps its last questions: new rules have to allow the same.
type connection struct {
	box    *box
	client *net.TCPConn
	end    context.CancelFunc
	done   chan struct{}

	// The box's mu guards the fields below.

	// traffic asks again for the last allowed connection or request. It is nil before the first one.
	traffic func() rules.Verdict
	// opensAddress asks again for the server's address. It is nil before the first one.
	opensAddress func() bool
	// isCounted says that the connection is one of the requests of the box. isFree says that the next
	// request is the same one.
	isCounted, isFree bool
	// allowed is the destination that the embedder has allowed for all traffic of the connection.
	allowed destination
	// counted are the bytes that are counted already. told are those of the events.
	counted, told link.Counts
}

// serveConnection serves a captured connection.
func (b *box) serveConnection(ctx context.Context, client *net.TCPConn) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	c := &connection{box: b, client: client, end: end, done: make(chan struct{})}
	defer close(c.done)
	if !b.gateway.shares.acquire(b) {
		c.refuse("there are too many open connections; close one")
		return
	}
	defer b.gateway.shares.release(b)
	b.mu.Lock()
	b.open[c] = struct{}{}
	clientBuffer, serverBuffer := buffers(len(b.open))
	proxies, hint := b.upstream, b.grant.Hint
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.open, c)
	}()
	proxy.Serve(ctx, client, &proxy.Sandbox{
		Rules: c, Names: b.names, Resolver: b.resolver, IsHost: b.gateway.host.contains, Report: c.report,
		Ask: c.askFunction(), Meter: c.meterFunction(), ClientBuffer: clientBuffer, ServerBuffer: serverBuffer,
		Upstream: proxies, Hint: hint, Search: b.search,
		Exists: func(name string) bool { return b.judgeName(name).Allowed },
	})
}

// The buffers of the worker's sockets, in bytes. The kernel keeps up to twice as much in each direction.
const (
	// tunedConnections is how many open connections of a box have buffers toward the server that the kernel sizes: a
	// fast connection to a far server needs some MiB.
	tunedConnections = 16
	// nearBuffer is enough for the way to the sandbox, which is short.
	nearBuffer = 256 << 10
	// smallBuffer is for both sides of the other connections.
	smallBuffer = 64 << 10
)

// buffers are the sizes of the buffers toward client and server of the newest of some open connections. The memory
// of these buffers is not the sandbox's. Without bounds 100 connections had filled most of tcp_mem, which all programs
// of the host share.
func buffers(open int) (client, server int) {
	if open <= tunedConnections {
		return nearBuffer, 0
	}
	return smallBuffer, smallBuffer
}

// refuse resets the connection before the proxy has seen it.
func (c *connection) refuse(reason string) {
	e := proxy.Event{Time: time.Now(), Decision: proxy.Denied, Reason: reason}
	if to, ok := c.client.LocalAddr().(*net.TCPAddr); ok {
		e.Address = netip.AddrPortFrom(to.AddrPort().Addr().Unmap(), to.AddrPort().Port())
		e.Port = e.Address.Port()
		e.Name, _ = c.box.names.Name(e.Address.Addr())
	}
	c.report(e)
	_ = c.client.SetLinger(0) // a closed connection needs no reset
	_ = c.client.Close()      // as above
}

// report tells the end of the connection, or of the part of it that has one destination.
func (c *connection) report(e proxy.Event) {
	b := c.box
	b.mu.Lock()
	c.told.Add(link.Counts{Sent: uint64(e.Sent), Received: uint64(e.Received)})
	count := c.countUpToLocked(c.told)
	if e.Decision == proxy.Denied {
		count.Refused = 1
	}
	b.used.Add(count)
	b.mu.Unlock()
	told := link.Event{
		Time: e.Time, Name: e.Name, Port: e.Port, Sent: e.Sent, Received: e.Received, Rule: e.Rule,
		Decision: string(e.Decision), Reason: e.Reason, Upstream: e.Upstream,
	}
	if e.Address.IsValid() {
		told.Address = e.Address.Addr().String()
	}
	b.report(told, count)
}

// Connect, Request and Address are those of [proxy.Rules].

// Connect judges traffic that the proxy does not read.
func (c *connection) Connect(name string, port uint16) rules.Verdict {
	return c.ask(link.Question{Name: name, Port: port})
}

// Request judges a request of plain HTTP.
func (c *connection) Request(name string, port uint16, method, path string) rules.Verdict {
	return c.ask(link.Question{Name: name, Port: port, Method: method, Path: path})
}

// Address judges an address of a server. The address of the last call is that of the connection.
func (c *connection) Address(a netip.Addr, port uint16) rules.Verdict {
	isHost := c.box.gateway.host.contains(a)
	c.box.mu.Lock()
	defer c.box.mu.Unlock()
	c.opensAddress = func() bool { return proxy.OpensServer(c.box.rules.Address(a, port), a, isHost) }
	return c.box.rules.Address(a, port)
}

// Destination judges the destination of a connection without a name. The proxy asks once for each, and refuses an
// address that the verdict does not open.
func (c *connection) Destination(a netip.Addr, port uint16) rules.Verdict {
	isHost := c.box.gateway.host.contains(a)
	c.box.mu.Lock()
	defer c.box.mu.Unlock()
	v := c.box.rules.Address(a, port)
	if proxy.OpensDestination(v, isHost) {
		c.opensAddress = func() bool { return proxy.OpensDestination(c.box.rules.Address(a, port), isHost) }
		c.traffic = nil // the name of an earlier request
		v = c.countLocked(v)
	}
	return v
}

func (c *connection) ask(q link.Question) rules.Verdict {
	c.box.mu.Lock()
	defer c.box.mu.Unlock()
	return c.askLocked(q)
}

// askLocked judges by the rules, and counts an allowed connection or request.
func (c *connection) askLocked(q link.Question) rules.Verdict {
	v := c.judgeLocked(q)
	if v.Allowed {
		v = c.countQuestionLocked(q, v)
	}
	return v
}

// isPermittedLocked says whether the present rules allow the same.
func (c *connection) isPermittedLocked() bool {
	return (c.traffic == nil || c.traffic().Allowed) && (c.opensAddress == nil || c.opensAddress())
}

// observedLocked allows a name that no rule denies, if the box is only observed. The reason says which
// rule would allow the name.
func (b *box) observedLocked(name string, v rules.Verdict) rules.Verdict {
	if !b.grant.Observe || v.Allowed || v.IsDenied() || !endsInLetters(name) {
		return v
	}
	return rules.Verdict{Allowed: true, Reason: v.Reason}
}

// endsInLetters is false for names that some programs read as an address.
func endsInLetters(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	return last != "" && 'a' <= last[0] && last[0] <= 'z'
}

// countConnectionLocked counts the connection as a request, once.
func (c *connection) countConnectionLocked(v rules.Verdict) rules.Verdict {
	if !c.isCounted {
		if v = c.countLocked(v); v.Allowed {
			c.isCounted, c.isFree = true, true
		}
	}
	return v
}

func (c *connection) countRequestLocked(v rules.Verdict) rules.Verdict {
	if c.isFree {
		c.isFree = false
		return v
	}
	if v = c.countLocked(v); v.Allowed {
		c.isCounted = true
	}
	return v
}

// countLocked refuses requests above the bounds of the box. The parent knows the count before the client
// gets anything.
func (c *connection) countLocked(v rules.Verdict) rules.Verdict {
	b := c.box
	if reason := b.spentLocked(); reason != "" {
		return rules.Verdict{Rule: v.Rule, Reason: reason}
	}
	count := link.Counts{Requests: 1}
	b.used.Add(count)
	_ = b.gateway.report(link.Report{Kind: link.KindEvent, Number: b.number, Counts: count}) // without a parent the process ends
	return v
}

// spentLocked is the reason to refuse a request above the bounds of the box.
func (b *box) spentLocked() string {
	switch {
	case b.isSpentLocked():
		return fmt.Sprintf("the sandbox has used up its %d bytes", b.grant.Bytes)
	case b.grant.Requests != 0 && b.used.Requests >= b.grant.Requests:
		return fmt.Sprintf("the sandbox has used up its %d requests", b.grant.Requests)
	}
	return ""
}
