package pool

import (
	"maps"
	"sync"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Claims count what became of requests for items, by user. The zero value has no counts. It is safe
// for concurrent use.
type Claims struct {
	mu    sync.Mutex
	users map[uint32]*userClaims
}

type userClaims struct {
	hits, stale    int
	misses         map[string]int // by reason
	total, longest time.Duration
}

// maxCounted bounds the users whose claims are counted.
const maxCounted = 10_000

// count changes the counts of a user.
func (c *Claims) count(uid uint32, change func(*userClaims)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.users[uid]
	if u == nil {
		if c.users == nil {
			c.users = map[uint32]*userClaims{}
		}
		if len(c.users) >= maxCounted {
			maps.DeleteFunc(c.users, func(uid uint32, _ *userClaims) bool { return uid != 0 })
		}
		u = &userClaims{misses: map[string]int{}}
		c.users[uid] = u
	}
	change(u)
}

// Hit counts a request that got an item, in this time.
func (c *Claims) Hit(uid uint32, took time.Duration) {
	c.count(uid, func(u *userClaims) {
		u.hits++
		u.total += took
		u.longest = max(u.longest, took)
	})
}

// Miss counts a request that got no item, for a reason.
func (c *Claims) Miss(uid uint32, reason string) {
	c.count(uid, func(u *userClaims) { u.misses[reason]++ })
}

// Stale counts an item that a request did not take because it could not be used any more.
func (c *Claims) Stale(uid uint32) {
	c.count(uid, func(u *userClaims) { u.stale++ })
}

// Add adds the counts of one user, or of all for nil, to those of a pool.
func (c *Claims) Add(s *spec.PoolStats, user *uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Misses = map[string]int{}
	var total time.Duration
	for uid, u := range c.users {
		if user != nil && uid != *user {
			continue
		}
		s.Hits += u.hits
		s.Stale += u.stale
		for reason, n := range u.misses {
			s.Misses[reason] += n
		}
		total += u.total
		s.LongestClaim = max(s.LongestClaim, spec.Duration(u.longest))
	}
	if s.Hits > 0 {
		s.AverageClaim = spec.Duration(total) / spec.Duration(s.Hits)
	}
}
