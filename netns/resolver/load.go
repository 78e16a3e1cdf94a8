package resolver

import (
	"net/netip"
	"sync"
	"time"
)

// The bounds of the work at one time.
const (
	// maxQueries and maxStreams bound the queries without an answer, and the connections of clients.
	maxQueries = 4096
	maxStreams = 512
	// maxPerPeer is the number of both that one sandbox has at most.
	maxPerPeer = 64
	// littleWork is how much each sandbox may have even if all together have all: a few busy sandboxes do not stop
	// the names of the others.
	littleWork = 4
)

// A load counts the work of each sandbox, by its address.
type load struct {
	most int // of all sandboxes

	mu    sync.Mutex
	total int
	peers map[netip.Addr]int
}

func newLoad(most int) *load { return &load{most: most, peers: map[netip.Addr]int{}} }

// take is false for a peer, or a resolver, that has all the work that it may have.
func (l *load) take(peer netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.peers[peer] >= maxPerPeer || l.total >= l.most && l.peers[peer] >= littleWork {
		return false
	}
	l.total++
	l.peers[peer]++
	return true
}

func (l *load) give(peer netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.peers[peer]--; l.peers[peer] == 0 {
		delete(l.peers, peer)
	}
}

// A rate bounds the events of each sandbox by a token bucket.
type rate struct {
	perSecond, burst float64

	mu    sync.Mutex
	peers map[netip.Addr]bucket // a state root has a bounded number of addresses
}

type bucket struct {
	spent float64 // of the burst
	at    time.Time
}

func newRate(perSecond, burst float64) *rate {
	return &rate{perSecond: perSecond, burst: burst, peers: map[netip.Addr]bucket{}}
}

// take is false for a peer whose bucket is empty.
func (r *rate) take(peer netip.Addr, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.peers[peer]
	spent := max(b.spent-now.Sub(b.at).Seconds()*r.perSecond, 0)
	if spent+1 > r.burst {
		return false
	}
	r.peers[peer] = bucket{spent + 1, now}
	return true
}
