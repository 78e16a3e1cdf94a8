// Package nameserver asks the name servers of the host over UDP. Many clients share a pool of ports: each pair of ports
// takes an entry of the host's table of connections, for two minutes after its last packet. So a port for each query
// would let the clients fill this table.
//
// The ports are random, each query has a random port of the pool and a random id, and a port lasts a minute. So a
// program outside has to guess as much for a false answer as with a port for each query. The package is not a
// resolver: it has no cache, and it asks one server once.
package nameserver

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	// Ports is the number of ports for each name server.
	Ports = 64
	// portLife is the age from which on a port gets no more queries.
	portLife = time.Minute
)

// A Pool has the ports of a process. The zero value is ready. A pool is for all goroutines, and lasts as long as the
// process.
type Pool struct {
	mu    sync.Mutex
	ports map[place]*port
}

// A place is one of the Ports places of a name server.
type place struct {
	server netip.AddrPort
	number byte
}

// ErrQuery says that a message is no query with one question.
var ErrQuery = errors.New("the message is no query with one question")

// Ask sends a query to a server, and returns the answer with the id of the query. It returns only an answer of this
// server to this question. The end of ctx ends the wait. The error is that of the network if the server cannot be
// reached, also ECONNREFUSED for a closed port of the server.
func (p *Pool) Ask(ctx context.Context, server netip.AddrPort, query []byte) ([]byte, error) {
	header, question, ok := Parse(query)
	if !ok || header.Response {
		return nil, ErrQuery
	}
	out, w, err := p.wait(server, question)
	if err != nil {
		return nil, err
	}
	defer out.forget(w)
	sent := append([]byte(nil), query...)
	binary.BigEndian.PutUint16(sent, w.id)
	if err := out.send(sent); err != nil {
		return nil, err
	}
	select {
	case got := <-w.result:
		if got.err == nil {
			copy(got.answer[:2], query[:2])
		}
		return got.answer, got.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Parse reads the header and the only question of a message.
func Parse(message []byte) (dnsmessage.Header, dnsmessage.Question, bool) {
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

// wait begins a wait for the answer to a question, on a random port.
func (p *Pool) wait(server netip.AddrPort, question dnsmessage.Question) (*port, *pendingQuery, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var number [1]byte
	_, _ = rand.Read(number[:]) // crypto/rand never fails
	out, err := p.portLocked(place{server, number[0] % Ports})
	if err != nil {
		return nil, nil, err
	}
	w, err := out.wait(question)
	return out, w, err
}

// portLocked is the port of a place, also a new one. Without a new one, for example because the process has too many
// open files, it is an earlier port of the server.
func (p *Pool) portLocked(at place) (*port, error) {
	earlier := p.ports[at]
	if earlier != nil && time.Since(earlier.opened) < portLife {
		return earlier, nil
	}
	opened, err := openPort(at.server)
	if err != nil {
		for other, out := range p.ports {
			if earlier == nil && other.server == at.server {
				earlier = out
			}
		}
		if earlier != nil {
			return earlier, nil
		}
		return nil, err
	}
	for other, out := range p.ports { // also those of servers that are asked no more
		if time.Since(out.opened) >= portLife {
			out.retire()
			delete(p.ports, other)
		}
	}
	if p.ports == nil {
		p.ports = map[place]*port{}
	}
	p.ports[at] = opened
	return opened, nil
}

// Close closes the ports once their waits have ended. Another query opens new ones.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, out := range p.ports {
		out.retire()
	}
	clear(p.ports)
}

// openPort opens a random port that gets packets of the server alone.
func openPort(server netip.AddrPort) (*port, error) {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(server))
	if err != nil {
		return nil, err
	}
	if err := queueErrors(conn, server.Addr()); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	out := &port{conn: conn, opened: time.Now(), waits: map[uint16]*pendingQuery{}}
	go out.read()
	return out, nil
}
