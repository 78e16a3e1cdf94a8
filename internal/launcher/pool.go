package launcher

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/kernel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/pool"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// blanks are the pool of a launcher, and the counts of its claims.
type blanks struct {
	*pool.Pool[*blank]

	mu     sync.Mutex
	claims map[uint32]*claims // by user
}

// claims are the counts of one user.
type claims struct {
	hits, stale    int
	misses         map[string]int // by reason
	total, longest time.Duration
}

// StartPool keeps blanks ready from now on: sandboxes that need only a name and the rest of their
// configuration. [Launcher.Create] claims them. path and home are of the environment of the expected
// clients. Until a client asks for others, the blanks are for sandboxes of root in memory.
func (l *Launcher) StartPool(c spec.PoolConfig, path, home string) error {
	c, err := c.Complete()
	if err != nil {
		return launch.Refusal(err)
	}
	config, err := completed(spec.Config{}, spec.StorageMemory)
	if err != nil {
		return err
	}
	t, _ := templateOf(launch.Create{Config: config, Path: path, Home: home}, Sources{})
	first, err := t.kind()
	if err != nil {
		return err
	}
	l.blanks = &blanks{claims: map[uint32]*claims{}}
	l.blanks.Pool = pool.Start(c, first, pool.Maker[*blank]{
		Make:  l.newBlank,
		Check: func(ctx context.Context, b *blank) error { return b.check(ctx) },
		End:   l.endBlank,
		Room:  kernel.MemoryShort,
	})
	return nil
}

// StopPool removes all blanks. Without a pool it does nothing.
func (l *Launcher) StopPool() {
	if l.blanks != nil {
		l.blanks.Close()
	}
}

// endBlank removes a blank. If that fails, prune removes the rest.
func (l *Launcher) endBlank(b *blank) { _ = b.remove(context.Background()) }

// errNoPool says that a launcher has no pool.
var errNoPool = errors.New("this launcher has no pool; start it with launcher --pool")

// ResizePool changes the bounds of the pool.
//
// Errors: *[launch.ConfigError], also for a launcher without a pool.
func (l *Launcher) ResizePool(c spec.PoolConfig) error {
	if l.blanks == nil {
		return launch.Refusal(errNoPool)
	}
	c, err := c.Complete()
	if err != nil {
		return launch.Refusal(err)
	}
	l.blanks.Resize(c)
	return nil
}

// PoolStats are the counts of the pool. If user is not nil, they are of this user only.
//
// Errors: *[launch.ConfigError] for a launcher without a pool.
func (l *Launcher) PoolStats(user *uint32) (spec.PoolStats, error) {
	if l.blanks == nil {
		return spec.PoolStats{}, launch.Refusal(errNoPool)
	}
	counts := l.blanks.Counts(user)
	s := spec.PoolStats{
		Config: l.blanks.Config(), Ready: counts.Ready, Total: counts.Ready + counts.Making, Misses: map[string]int{},
	}
	if user == nil {
		s.Failed, s.LastError, s.Stale = counts.Failed, counts.LastError, counts.Unhealthy
	}
	l.blanks.mu.Lock()
	defer l.blanks.mu.Unlock()
	var total time.Duration
	for uid, c := range l.blanks.claims {
		if user != nil && uid != *user {
			continue
		}
		s.Hits += c.hits
		s.Stale += c.stale
		for reason, n := range c.misses {
			s.Misses[reason] += n
		}
		total += c.total
		s.LongestClaim = max(s.LongestClaim, spec.Duration(c.longest))
	}
	if s.Hits > 0 {
		s.AverageClaim = spec.Duration(total) / spec.Duration(s.Hits)
	}
	return s, nil
}

// takeBlank takes a blank for a request out of the pool. It returns nil if there is none.
func (l *Launcher) takeBlank(ctx context.Context, r launch.Create, from Sources) *blank {
	t, reason := templateOf(r, from)
	kind, err := t.kind()
	if err != nil {
		reason = "template"
	}
	if reason != "" {
		l.blanks.count(from.UID, func(c *claims) { c.misses[reason]++ })
		return nil
	}
	for {
		b, ok := l.blanks.Take(kind, from.UID, l.share(from.UID))
		if !ok {
			l.blanks.count(from.UID, func(c *claims) { c.misses["empty"]++ })
			return nil
		}
		if err := b.check(ctx); err == nil {
			return b
		}
		l.blanks.count(from.UID, func(c *claims) { c.stale++ })
		l.tending.Go(func() { l.endBlank(b) })
	}
}

// share is the number of blanks that the pool keeps for one user at most.
func (l *Launcher) share(uid uint32) int {
	most := l.blanks.Config().Max
	if uid == 0 {
		return most
	}
	return max(1, most/4)
}

// maxCounted bounds the users whose claims are counted.
const maxCounted = 10_000

// count changes the counts of a user.
func (b *blanks) count(uid uint32, change func(*claims)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.claims[uid]
	if c == nil {
		if len(b.claims) >= maxCounted {
			maps.DeleteFunc(b.claims, func(uid uint32, _ *claims) bool { return uid != 0 })
		}
		c = &claims{misses: map[string]int{}}
		b.claims[uid] = c
	}
	change(c)
}

// hit counts a claim.
func (b *blanks) hit(uid uint32, took time.Duration) {
	b.count(uid, func(c *claims) {
		c.hits++
		c.total += took
		c.longest = max(c.longest, took)
	})
}

// makesCold notes that a sandbox is made without a blank, until the returned function is called.
func (l *Launcher) makesCold() (done func()) {
	if l.blanks == nil {
		return func() {}
	}
	return l.blanks.Elsewhere()
}
