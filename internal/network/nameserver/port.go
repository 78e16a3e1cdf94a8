package nameserver

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// maxMessage is the longest message, in bytes.
const maxMessage = 65535

// A port is a connected socket with the queries that wait for an answer of its server. It is closed when it is
// retired and the last wait has ended. Then its goroutine ends.
type port struct {
	conn   *net.UDPConn
	opened time.Time

	mu        sync.Mutex
	waits     map[uint16]*pendingQuery // by the id
	isRetired bool
}

// A pendingQuery is a query that has no answer yet.
type pendingQuery struct {
	id       uint16
	question dnsmessage.Question
	result   chan result // has room for one
}

type result struct {
	answer []byte
	err    error
}

// maxWaits leaves free ids: a search for a random one ends soon.
const maxWaits = 1 << 14

var errBusy = errors.New("too many queries wait for an answer of the name server")

// wait begins a wait under a random id.
func (p *port) wait(question dnsmessage.Question) (*pendingQuery, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waits) >= maxWaits {
		return nil, errBusy
	}
	w := &pendingQuery{question: question, result: make(chan result, 1)}
	for {
		var id [2]byte
		_, _ = rand.Read(id[:]) // crypto/rand never fails
		w.id = binary.BigEndian.Uint16(id[:])
		if p.waits[w.id] == nil {
			p.waits[w.id] = w
			return w, nil
		}
	}
}

// forget ends a wait.
func (p *port) forget(w *pendingQuery) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waits[w.id] == w {
		delete(p.waits, w.id)
	}
	p.closeLocked()
}

func (p *port) retire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.isRetired = true
	p.closeLocked()
}

func (p *port) closeLocked() {
	if p.isRetired && len(p.waits) == 0 {
		_ = p.conn.Close() // no error matters: the socket is used no more
	}
}

// finish gives the wait with the id its result. An answer to another question does not end the wait.
func (p *port) finish(id uint16, question *dnsmessage.Question, r result) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.waits[id]
	if w == nil || question != nil && w.question != *question {
		return
	}
	select {
	case w.result <- r:
	default: // a second answer
	}
}

// sendTries bounds the tries to send a packet. A try can fail because of the error of an earlier packet.
const sendTries = 4

func (p *port) send(query []byte) (err error) {
	for range sendTries {
		if _, err = p.conn.Write(query); err == nil {
			return nil
		}
		p.readErrors()
	}
	return err
}

// pause follows an unknown failure of a socket.
const pause = 10 * time.Millisecond

// read takes the packets of the server until the socket is closed.
func (p *port) read() {
	buffer := make([]byte, maxMessage)
	for {
		n, err := p.conn.Read(buffer)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			if p.readErrors() == 0 {
				time.Sleep(pause)
			}
			continue
		}
		if header, question, ok := Parse(buffer[:n]); ok && header.Response {
			p.finish(header.ID, &question, result{answer: append([]byte(nil), buffer[:n]...)})
		}
	}
}
