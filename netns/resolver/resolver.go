// Package resolver answers the DNS queries of sandboxes: it forwards them to the name servers of
// the host. It reads messages of hostile programs, so it runs in a process of its own without any
// privilege.
package resolver

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"net"
	"net/netip"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/nameserver"
)

const (
	// tryTime is how long one name server has for an answer.
	tryTime = 2 * time.Second
	// rounds is how often each name server is asked.
	rounds = 2
)

// A forwarder asks the name servers of the host.
type forwarder struct {
	servers func() []netip.AddrPort
	pool    *nameserver.Pool
	// queries are those without an answer, and clients are connections.
	queries, clients *load
	// asked has the queries, and streams has the connections to name servers.
	asked, streams *rate
}

func newForwarder(servers func() []netip.AddrPort) forwarder {
	return forwarder{
		servers: servers, pool: &nameserver.Pool{},
		queries: newLoad(maxQueries), clients: newLoad(maxStreams),
		// The router's packet filter has the bound of queries, too, for packets and for new connections.
		asked:   newRate(nameserver.QueryRate, nameserver.QueryBurst),
		streams: newRate(nameserver.StreamRate, nameserver.StreamBurst),
	}
}

// A query is a query of a sandbox.
type query struct {
	message  []byte
	header   dnsmessage.Header
	question dnsmessage.Question
	client   netip.Addr
	isStream bool // it came over TCP
}

// accept reads a message of a sandbox. If isOpen is true, the caller must call answer. Otherwise accept has the answer,
// which is nil for a message that is no query.
//
// A query above a bound is refused (REFUSED), and not failed (SERVFAIL): after SERVFAIL, musl asks again at once, and
// systemd-resolved goes on without extensions. After both, glibc asks once more and reports a temporary failure.
func (f forwarder) accept(client netip.Addr, isStream bool, message []byte) (q query, answer []byte, isOpen bool) {
	q = query{message: message, client: client, isStream: isStream}
	var ok bool
	if q.header, q.question, ok = nameserver.Parse(message); !ok || q.header.Response {
		return q, nil, false
	}
	if code := refusal(q.header, q.question); code != dnsmessage.RCodeSuccess {
		return q, q.failure(code), false
	}
	if !f.asked.allow(client) || !f.queries.acquire(client) {
		return q, q.failure(dnsmessage.RCodeRefused), false
	}
	return q, nil, true
}

// answer returns the answer to an accepted query. Another name server can know more than one that fails or refuses, as
// programs of the host find. Without an answer of the host's name servers it is SERVFAIL.
func (f forwarder) answer(ctx context.Context, q query) []byte {
	defer f.queries.release(q.client)
	var unhelpful []byte
	for range rounds {
		for _, server := range f.servers() {
			if q.isStream && !f.streams.allow(q.client) {
				return q.failure(dnsmessage.RCodeRefused)
			}
			answer, err := f.exchange(ctx, server, q)
			switch {
			case err == nil && isHelpful(answer):
				return answer
			case err == nil && unhelpful == nil:
				unhelpful = answer
			case ctx.Err() != nil:
				return nil
			}
		}
		if unhelpful != nil {
			return unhelpful
		}
	}
	return q.failure(dnsmessage.RCodeServerFailure)
}

// isHelpful is false for the codes after which the C library asks the next name server (glibc, resolv/res_send.c).
func isHelpful(answer []byte) bool {
	header, _, _ := nameserver.Parse(answer)
	switch header.RCode {
	case dnsmessage.RCodeServerFailure, dnsmessage.RCodeNotImplemented, dnsmessage.RCodeRefused:
		return false
	}
	return true
}

// refusal is the code for a message that no name server gets: the servers can trust the host more than a
// sandbox. These are changes of a zone, and requests for a whole zone (RFC 2136, RFC 5936, RFC 1995).
func refusal(h dnsmessage.Header, q dnsmessage.Question) dnsmessage.RCode {
	const query, incremental = 0, 251
	switch {
	case h.OpCode != query:
		return dnsmessage.RCodeNotImplemented
	case q.Type == dnsmessage.TypeAXFR, q.Type == incremental:
		return dnsmessage.RCodeRefused
	}
	return dnsmessage.RCodeSuccess
}

func (q query) failure(code dnsmessage.RCode) []byte {
	h := q.header
	message := dnsmessage.Message{
		Header: dnsmessage.Header{
			ID: h.ID, Response: true, OpCode: h.OpCode, RecursionDesired: h.RecursionDesired,
			RecursionAvailable: true, RCode: code,
		},
		Questions: []dnsmessage.Question{q.question},
	}
	packed, err := message.Pack()
	if err != nil {
		return nil
	}
	return packed
}

// exchange sends the query to one server, and returns the answer with the id of the query.
func (f forwarder) exchange(ctx context.Context, server netip.AddrPort, q query) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	if q.isStream {
		return askStream(ctx, server, q)
	}
	return f.pool.Ask(ctx, server, q.message)
}

// askStream asks over a connection, under a new random id. It takes only an answer to this question. The connection
// ends with a reset: the host's table of connections keeps a reset connection for ten seconds, and a closed one for two
// minutes (nf_conntrack_proto_tcp.c: tcp_timeouts).
func askStream(ctx context.Context, server netip.AddrPort, q query) ([]byte, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", server.String())
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if tcp, ok := c.(*net.TCPConn); ok {
		if err := tcp.SetLinger(0); err != nil {
			return nil, err
		}
	}
	deadline, _ := ctx.Deadline()
	if err := c.SetDeadline(deadline); err != nil {
		return nil, err
	}
	sent := append([]byte(nil), q.message...)
	_, _ = rand.Read(sent[:2]) // crypto/rand never fails
	if err := writeMessage(c, sent); err != nil {
		return nil, err
	}
	for {
		answer, err := readMessage(c)
		if err != nil {
			return nil, err
		}
		header, got, ok := nameserver.Parse(answer)
		if ok && header.Response && header.ID == binary.BigEndian.Uint16(sent) && got == q.question {
			copy(answer[:2], q.message[:2])
			return answer, nil
		}
	}
}
