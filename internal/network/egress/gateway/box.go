package gateway

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/time/rate"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/link"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/names"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/proxy"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/upstream"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/rules"
)

// A box is one sandbox.
type box struct {
	gateway *gateway
	number  uint32
	names   *names.Table
	events  *rate.Limiter
	// resolver finds the addresses of names outside.
	resolver *net.Resolver
	// search are the search domains of the host, which the sandbox has, too.
	search []string

	// listeners are used by the one goroutine that carries out orders. end ends the context of their connections.
	// sockets is the number of sockets in the last order that had some.
	listeners []io.Closer
	sockets   int
	end       context.CancelFunc

	// mu guards the fields below. The connections ask the rules while they hold mu: so change sees each
	// allowed connection.
	mu    sync.Mutex
	rules *rules.List
	grant link.Box
	// upstream are the proxies of grant. Nil: there are none.
	upstream *upstream.Proxies
	used     link.Counts
	open     map[*connection]struct{}
	// embedder decides about names without a rule.
	embedder embedder
	// missing is the last name that was refused, with the types of the queries, and missed is the time of the first.
	missing      string
	missingTypes []dnsmessage.Type
	missed       time.Time
	// isDismissed says that the box records no more names.
	isDismissed bool
}

func newBox(g *gateway, o link.Order) (*box, error) {
	b := &box{
		gateway: g, number: o.Number, resolver: newResolver(g.servers.Ask), search: searchDomains(), used: o.Used, rules: &rules.List{},
		events: rate.NewLimiter(eventRate, eventBurst), open: map[*connection]struct{}{}, end: func() {},
		embedder: embedder{open: map[uint64]chan link.Answer{}},
	}
	var err error
	b.names, err = names.New(o.Names, b.recordName)
	return b, err
}

// recordName tells the parent a new name. The parent knows all names of a dismissed box before the
// acknowledgement: the next box of the number begins with them.
func (b *box) recordName(name string) error {
	if !link.IsName(name) {
		return fmt.Errorf("%q is no name of a host", name)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isDismissed {
		return errors.New("the sandbox has left the network")
	}
	return b.gateway.report(link.Report{Kind: link.KindName, Number: b.number, Name: name})
}

// change brings new rules into force, and ends the connections that they do not permit. Rules with an
// error permit nothing. Another upstream proxy ends all connections. An embedder decides about new connections without a
// rule if decides is true.
func (b *box) change(grant *link.Box, decides bool) {
	list, err := rules.New(grant.Allow, grant.Deny)
	proxies, wrong := proxiesOf(grant)
	if err != nil || wrong != nil {
		list = &rules.List{}
	}
	b.mu.Lock()
	isOtherWay := !reflect.DeepEqual(b.grant.Upstream, grant.Upstream)
	b.rules, b.upstream, b.grant, b.embedder.decides = list, proxies, *grant, decides
	var ended []*connection
	for c := range b.open {
		if isOtherWay || !c.isPermittedLocked() {
			ended = append(ended, c)
		}
	}
	b.mu.Unlock()
	endAll(ended)
}

// proxiesOf are the upstream proxies of a grant. Nil: there are none.
func proxiesOf(grant *link.Box) (*upstream.Proxies, error) {
	if grant.Upstream == nil {
		return nil, nil
	}
	if strings.HasPrefix(grant.Upstream.HTTP, "https:") || strings.HasPrefix(grant.Upstream.HTTPS, "https:") {
		_, _ = x509.SystemCertPool() // reads the files while this process can: see authorities
	}
	return upstream.New(*grant.Upstream)
}

// endTime bounds the wait for connections that were reset.
const endTime = 2 * time.Second

// endAll ends connections, and waits for their end.
func endAll(connections []*connection) {
	for _, c := range connections {
		c.end()
	}
	await(connections, endTime)
}

// await waits until the connections have told their ends, for a time.
func await(connections []*connection, most time.Duration) {
	late := time.NewTimer(most)
	defer late.Stop()
	for _, c := range connections {
		select {
		case <-c.done:
		case <-late.C:
			return
		}
	}
}

// listen replaces the sockets of the box, and ends its connections. It takes the files over. If a socket
// cannot be served, the box has none. The parent has checked the sockets.
func (b *box) listen(roles []link.Role, files []*os.File) {
	b.close()
	defer descriptor.Close(files...)
	ctx, end := context.WithCancel(context.Background())
	b.end = end
	for i, role := range roles {
		if err := b.openSocket(ctx, role, files[i]); err != nil {
			b.report(link.Event{Time: time.Now(), Decision: string(proxy.Failed), Reason: fmt.Sprintf("a socket of the sandbox cannot be served: %v", err)}, link.Counts{})
			b.close()
			return
		}
	}
}

// openSocket opens one socket.
func (b *box) openSocket(ctx context.Context, role link.Role, f *os.File) error {
	switch role {
	case link.DNSPackets:
		p, err := net.FilePacketConn(f)
		if err != nil {
			return err
		}
		b.listeners = append(b.listeners, p)
		c, ok := p.(*net.UDPConn)
		if !ok {
			return errors.New("a socket for packets is not of UDP")
		}
		go b.answerPackets(c)
	case link.DNSStreams, link.Streams:
		l, err := net.FileListener(f)
		if err != nil {
			return err
		}
		b.listeners = append(b.listeners, l)
		t, ok := l.(*net.TCPListener)
		if !ok {
			return errors.New("a socket for connections is not of TCP")
		}
		serve := b.serveConnection
		if role == link.DNSStreams {
			serve = b.serveQueries
		}
		go func() {
			_ = descriptor.AcceptAll(t.AcceptTCP, func(c *net.TCPConn) { go serve(ctx, c) }, nil) // until close
		}()
	default:
		return fmt.Errorf("a socket has the role %q", role)
	}
	return nil
}

// close closes the sockets, and ends the connections.
func (b *box) close() {
	b.end()
	for _, l := range b.listeners {
		_ = l.Close() // no error matters: the socket is used no more
	}
	b.listeners = nil
	b.mu.Lock()
	open := slices.Collect(maps.Keys(b.open))
	b.mu.Unlock()
	endAll(open)
}

// settleTime bounds the wait for connections that have ended.
const settleTime = 100 * time.Millisecond

// settle reports the bytes of the open connections, and waits for the reports of those that have ended for
// the sandbox.
func (b *box) settle() {
	b.meter()
	b.mu.Lock()
	var ended []*connection
	for c := range b.open {
		if c.hasEnded() {
			ended = append(ended, c)
		}
	}
	b.mu.Unlock()
	await(ended, settleTime)
}

// isLimited says whether the bytes of the box are bounded.
func (b *box) isLimited() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.grant.Bytes != 0 && len(b.open) > 0
}

func (b *box) isSpentLocked() bool {
	return b.grant.Bytes != 0 && b.used.Sent+b.used.Received >= b.grant.Bytes
}

// addCounts adds counts to those of the box.
func (b *box) addCounts(c link.Counts) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used.Add(c)
}
