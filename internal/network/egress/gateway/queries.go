package gateway

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/answer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/link"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/proxy"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/rules"
)

const (
	// maxQuery bounds a query, in bytes. Longer ones get no answer.
	maxQuery = 1500
	// queryTime bounds the silence of a connection with queries.
	queryTime = 10 * time.Second
)

// A packet has the memory for one query over UDP. Sockets without a query have none.
type packet struct {
	query   [maxQuery]byte
	control [128]byte
}

var packets = sync.Pool{New: func() any { return new(packet) }}

// answerPackets answers the queries of a socket until it is closed.
func (b *box) answerPackets(c *net.UDPConn) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	for {
		var p *packet
		var n, length, flags int
		var peer unix.Sockaddr
		var err error
		closed := raw.Read(func(fd uintptr) bool {
			p = packets.Get().(*packet) //nolint:forcetypeassert // the pool has no others
			n, length, flags, peer, err = unix.Recvmsg(int(fd), p.query[:], p.control[:], unix.MSG_DONTWAIT)
			if errors.Is(err, unix.EAGAIN) {
				packets.Put(p)
				return false
			}
			return true
		})
		if closed != nil {
			return
		}
		if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) == 0 {
			b.answerPacket(raw, p.query[:n], p.control[:length], peer)
		}
		packets.Put(p)
	}
}

// answerPacket answers from the address that was asked: the control message says which one that is.
func (b *box) answerPacket(raw syscall.RawConn, query, control []byte, peer unix.Sockaddr) {
	text := b.answer(query)
	if text == nil {
		return
	}
	_ = raw.Write(func(fd uintptr) bool { // a client without room for an answer gets none
		_, _ = unix.SendmsgN(int(fd), text, control, peer, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		return true
	})
}

// serveQueries answers the queries of a connection (RFC 1035, section 4.2.2).
func (b *box) serveQueries(ctx context.Context, stream *net.TCPConn) {
	var c net.Conn = stream
	defer c.Close()
	if !b.gateway.shares.acquire(b) {
		return
	}
	defer b.gateway.shares.release(b)
	defer context.AfterFunc(ctx, func() { c.Close() })()
	_ = stream.SetReadBuffer(smallBuffer)  // a closed connection needs no buffer
	_ = stream.SetWriteBuffer(smallBuffer) // as above
	var head [2]byte
	for {
		_ = c.SetDeadline(time.Now().Add(queryTime)) // a closed connection gives an error below
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(head[:]))
		if len(query) > maxQuery {
			return
		}
		if _, err := io.ReadFull(c, query); err != nil {
			return
		}
		text := b.answer(query)
		if text == nil {
			return
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(text))), text...)); err != nil {
			return
		}
	}
}

// repeatTime is the time for which a client asks for other types of a name that it does not get, such as the
// other family of addresses.
const repeatTime = 5 * time.Second

// maxTypes is the number of types of one event.
const maxTypes = 8

// answer answers one query. A refused one is an event, unless the query before was for another type of
// the same name.
func (b *box) answer(query []byte) []byte {
	var v rules.Verdict
	text, event := answer.Answer(query, func(name string) bool {
		v = b.judgeName(name)
		return v.Allowed
	}, b.names)
	reason := v.Reason
	switch event.Decision {
	case answer.Denied:
		if reason == "" { // no rule can have the name
			reason = event.Name + " is not the name of a host"
		}
	case answer.Failed: // a limit of the sandbox
		reason = event.Err.Error()
	default:
		return text
	}
	if !b.repeats(event.Name, event.Type) {
		count := link.Counts{Refused: 1}
		b.addCounts(count)
		b.report(link.Event{Time: time.Now(), Name: event.Name, Decision: string(proxy.Denied), Rule: v.Rule, Reason: reason}, count)
	}
	return text
}

func (b *box) judgeName(name string) rules.Verdict {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := b.observedLocked(name, b.rules.Name(name))
	if !v.IsDenied() && b.canDecideLocked(name) {
		v.Allowed = true // the embedder decides about the connection
	}
	return v
}

// repeats says whether a query belongs to the event of an earlier query. The same query again is a new event: the
// next command of a sandbox may ask for the name of the last one.
func (b *box) repeats(name string, kind dnsmessage.Type) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	isSame := name == b.missing && time.Since(b.missed) < repeatTime
	if isSame && len(b.missingTypes) < maxTypes && !slices.Contains(b.missingTypes, kind) {
		b.missingTypes = append(b.missingTypes, kind)
		return true
	}
	b.missing, b.missingTypes, b.missed = name, []dnsmessage.Type{kind}, time.Now()
	return false
}
