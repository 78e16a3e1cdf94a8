// Package resolver answers the DNS queries of sandboxes: it forwards them to the name servers of
// the host. It reads messages of hostile programs, so it runs in a process of its own without any
// privilege.
package resolver

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"net"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	maxMessage = 65535
	// tryTime is how long one name server has for an answer.
	tryTime = 2 * time.Second
	// rounds is how often each name server is asked.
	rounds = 2
)

// A forwarder asks the name servers of the host. Each server is an address with a port.
type forwarder struct{ servers func() []string }

// answer returns the answer to a query; network is udp or tcp. A query that is none gets no answer
// (nil). Without an answer of the host's name servers the answer is SERVFAIL.
func (f forwarder) answer(ctx context.Context, network string, query []byte) []byte {
	header, question, ok := parse(query)
	if !ok || header.Response {
		return nil
	}
	if code := refusal(header, question); code != dnsmessage.RCodeSuccess {
		return failure(header, question, code)
	}
	for range rounds {
		for _, server := range f.servers() {
			answer, err := ask(ctx, network, server, query, question)
			if err == nil {
				copy(answer[:2], query[:2])
				return answer
			}
			if ctx.Err() != nil {
				return nil
			}
		}
	}
	return failure(header, question, dnsmessage.RCodeServerFailure)
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

// parse reads the header and the only question of a message.
func parse(message []byte) (dnsmessage.Header, dnsmessage.Question, bool) {
	var p dnsmessage.Parser
	header, err := p.Start(message)
	if err != nil {
		return header, dnsmessage.Question{}, false
	}
	question, err := p.Question()
	if err != nil {
		return header, question, false
	}
	_, err = p.Question()
	return header, question, errors.Is(err, dnsmessage.ErrSectionDone)
}

func failure(h dnsmessage.Header, q dnsmessage.Question, code dnsmessage.RCode) []byte {
	message := dnsmessage.Message{
		Header: dnsmessage.Header{
			ID: h.ID, Response: true, OpCode: h.OpCode, RecursionDesired: h.RecursionDesired,
			RecursionAvailable: true, RCode: code,
		},
		Questions: []dnsmessage.Question{q},
	}
	packed, err := message.Pack()
	if err != nil {
		return nil
	}
	return packed
}

// ask sends the query to one server, under a new random id and from a new random port. It takes
// only an answer to this question.
func ask(ctx context.Context, network, server string, query []byte, question dnsmessage.Question) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, network, server)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	deadline, _ := ctx.Deadline()
	if err := c.SetDeadline(deadline); err != nil {
		return nil, err
	}
	sent := append([]byte(nil), query...)
	_, _ = rand.Read(sent[:2]) // crypto/rand never fails
	stream := messages{c, network == "tcp"}
	if err := stream.write(sent); err != nil {
		return nil, err
	}
	for {
		answer, err := stream.read()
		if err != nil {
			return nil, err
		}
		header, got, ok := parse(answer)
		if ok && header.Response && header.ID == binary.BigEndian.Uint16(sent) && got == question {
			return answer, nil
		}
	}
}
