package resolver

import (
	"net/netip"
	"sync"

	xrate "golang.org/x/time/rate"
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

// acquire is false for a peer, or a resolver, that has all the work that it may have.
func (l *load) acquire(peer netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.peers[peer] >= maxPerPeer || l.total >= l.most && l.peers[peer] >= littleWork {
		return false
	}
	l.total++
	l.peers[peer]++
	return true
}

func (l *load) release(peer netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.peers[peer]--; l.peers[peer] == 0 {
		delete(l.peers, peer)
	}
}

// A rate bounds the events of each sandbox.
type rate struct {
	perSecond xrate.Limit
	burst     int

	mu    sync.Mutex
	peers map[netip.Addr]*xrate.Limiter // a state root has a bounded number of addresses
}

func newRate(perSecond xrate.Limit, burst int) *rate {
	return &rate{perSecond: perSecond, burst: burst, peers: map[netip.Addr]*xrate.Limiter{}}
}

// allow is false for an event above the bound.
func (r *rate) allow(peer netip.Addr) bool {
	r.mu.Lock()
	l := r.peers[peer]
	if l == nil {
		l = xrate.NewLimiter(r.perSecond, r.burst)
		r.peers[peer] = l
	}
	r.mu.Unlock()
	return l.Allow()
}
