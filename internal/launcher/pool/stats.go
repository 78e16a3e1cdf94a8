package pool

import "github.com/sandbox-runtime/sandbox-runtime/spec"

// Counts are those of a pool since its start.
type Counts struct {
	// Ready are the items that can be taken now, and Making those that are being made. All are of
	// one owner, if there is one.
	Ready, Making int
	// Failed could not be made or ended. LastError is the reason of the last failure.
	Failed    int
	LastError string
	// Unhealthy items were found by a check and ended.
	Unhealthy int
}

// Counts returns the counts of now. owner counts only this owner's items as ready or making; nil
// counts all.
func (p *Pool[T]) Counts(owner *uint32) Counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.counts
	for _, k := range p.kinds {
		if owner == nil || k.owner == *owner {
			c.Ready += len(k.ready)
			c.Making += k.making
		}
	}
	return c
}

// Config returns the present bounds.
func (p *Pool[T]) Config() spec.PoolConfig {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.config
}
