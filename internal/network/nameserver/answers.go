package nameserver

import (
	"context"
	"encoding/binary"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// answerLife is how long an answer serves the same question of the same sandbox again.
const answerLife = time.Second

// maxAnswers bounds the answers of a sandbox that are kept at a time.
const maxAnswers = 128

// An Exchange sends a query to a name server, and returns the answer.
type Exchange func(ctx context.Context, server netip.AddrPort, query []byte) ([]byte, error)

// Answers keep the answers to the queries of one sandbox for a second. Programs of a proxied sandbox keep no addresses, since
// those that they see are synthetic. So each of their connections is a lookup, and a client with many short connections
// would soon be above the bound of queries. No other sandbox sees the answers, so none can measure the lookups of another one.
type Answers struct {
	exchange Exchange

	mu   sync.Mutex
	kept map[askedQuery]keptAnswer
}

// An askedQuery is all of a query but its id.
type askedQuery struct {
	server netip.AddrPort
	text   string
}

type keptAnswer struct {
	message []byte
	expires time.Time
}

// NewAnswers has no answers yet.
func NewAnswers(e Exchange) *Answers { return &Answers{exchange: e, kept: map[askedQuery]keptAnswer{}} }

// Ask is an [Exchange].
func (a *Answers) Ask(ctx context.Context, server netip.AddrPort, query []byte) ([]byte, error) {
	const idSize = 2
	if len(query) < idSize {
		return a.exchange(ctx, server, query)
	}
	q := askedQuery{server, string(query[idSize:])}
	if message, ok := a.find(q); ok {
		copy(message[:idSize], query[:idSize])
		return message, nil
	}
	message, err := a.exchange(ctx, server, query)
	if err == nil && isFinal(message) {
		a.keep(q, message)
	}
	return message, err
}

// find returns a copy of the answer.
func (a *Answers) find(q askedQuery) ([]byte, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	found, ok := a.kept[q]
	if !ok || time.Now().After(found.expires) {
		return nil, false
	}
	return append([]byte(nil), found.message...), true
}

func (a *Answers) keep(q askedQuery, message []byte) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.kept) >= maxAnswers {
		for old, found := range a.kept {
			if now.After(found.expires) {
				delete(a.kept, old)
			}
		}
	}
	if len(a.kept) < maxAnswers {
		a.kept[q] = keptAnswer{append([]byte(nil), message...), now.Add(answerLife)}
	}
}

// isFinal says that a name server has answered about the name: there is one, or there is none.
func isFinal(message []byte) bool {
	const flagsAt, flagsEnd, truncated, codeMask = 2, 4, 1 << 9, 0xf
	if len(message) < flagsEnd {
		return false
	}
	flags := binary.BigEndian.Uint16(message[flagsAt:flagsEnd])
	code := dnsmessage.RCode(flags & codeMask)
	return flags&truncated == 0 && (code == dnsmessage.RCodeSuccess || code == dnsmessage.RCodeNameError)
}
