package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A Maker makes the items of a pool. Several goroutines may call its functions at the same time.
type Maker[T any] struct {
	// Make makes an item of a kind. isNext says that the next Take of the kind probably takes this item. Two errors
	// are no failures: [context.Canceled] itself if the context has ended, and [ErrUnwanted] itself. After these errors
	// nothing is left.
	Make func(ctx context.Context, kind string, isNext bool) (T, error)
	// Check returns an error if an item cannot be used any more. isNext is as for Make.
	Check func(ctx context.Context, item T, isNext bool) error
	// End ends an item that nobody took.
	End func(item T) error
	// Room returns an error if the host has no room for another item now.
	Room func() error
	// Failed is told why an item was not made, could not be used, or did not end.
	Failed func(error)
}

// ErrUnwanted says that nobody can take items of a kind any more.
var ErrUnwanted = errors.New("nobody can take an item of this kind")

// A Pool keeps items ready. Each item is of one kind, and is taken once.
type Pool[T any] struct {
	maker Maker[T]
	// wakeMaker and wakeKeeper wake the goroutines that make items, and that check and end items.
	wakeMaker, wakeKeeper chan struct{}
	stop                  context.CancelFunc
	ended                 sync.WaitGroup
	closing               sync.Once

	mu     sync.Mutex
	config spec.PoolConfig
	first  string // the kind of the items that stay ready if nobody asks for any
	kinds  map[string]*kind[T]
	making int
	number int       // of the last item that was begun
	begun  time.Time // the last item
	cold   int       // requests that found no item, and are served without the pool now
	// turns are the times of the last item that was made for each owner.
	turns map[uint32]time.Time
	// unfit are items that were taken, could not be used, and have to end. ending counts items that
	// are ending.
	unfit  []T
	ending int
	// noRoom is the pause after the host had no room.
	noRoom pause
	closed bool
	counts Counts
}

// Start returns a pool that keeps items of the first kind ready from now on. The caller must close
// the pool.
func Start[T any](c spec.PoolConfig, first string, m Maker[T]) *Pool[T] {
	ctx, stop := context.WithCancel(context.Background())
	p := &Pool[T]{
		maker: m, wakeMaker: make(chan struct{}, 1), wakeKeeper: make(chan struct{}, 1), stop: stop,
		config: c, first: first, kinds: map[string]*kind[T]{}, turns: map[uint32]time.Time{},
	}
	p.kinds[first] = &kind[T]{wanted: min(max(c.WarmUp, c.Min), c.Max), asked: time.Now()}
	p.ended.Go(func() { repeat(ctx, p.wakeMaker, func() { p.makeAll(ctx) }) })
	p.ended.Go(func() { repeat(ctx, p.wakeKeeper, func() { p.keep(ctx) }) })
	return p
}

// Take takes the newest item of a kind. The caller owns the item. If none is ready, Take returns
// false, and more items of the kind are made for later. All kinds of one owner together have at
// most as many items as the owner's share.
func (p *Pool[T]) Take(name string, owner uint32, share int) (taken Item[T], ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return taken, false
	}
	k := p.kinds[name]
	if k == nil {
		k = &kind[T]{owner: owner}
		p.kinds[name] = k
	}
	k.asked = time.Now()
	if 2*len(k.ready) <= k.wanted {
		defer p.Wake()
	}
	if len(k.ready) == 0 {
		if k.asked.After(k.failed.until) { // an item that cannot be made takes the place of no other
			p.wantLocked(k, min(share, p.config.Max))
		}
		return taken, false
	}
	last := len(k.ready) - 1
	taken, k.taken = k.ready[last], k.asked
	time.AfterFunc(settleTime, p.Wake)
	k.ready = slices.Delete(k.ready, last, last+1)
	return taken, true
}

// Return gives back an item that was taken and not used. The item keeps its age. The pool ends the item
// if nobody wants one of its kind any more.
func (p *Pool[T]) Return(name string, taken Item[T]) {
	p.mu.Lock()
	k := p.kinds[name]
	kept := k != nil && !p.closed
	if kept {
		k.addReady(taken)
	}
	p.mu.Unlock()
	if !kept {
		p.End(taken.Value)
	}
}

// EndLater ends an item that was taken and cannot be used, for a reason. It does not wait for the end.
func (p *Pool[T]) EndLater(value T, reason error) {
	p.maker.Failed(fmt.Errorf("it cannot be used any more: %w", reason))
	p.mu.Lock()
	p.unfit = append(p.unfit, value)
	p.ending++
	closed := p.closed
	p.mu.Unlock()
	if closed {
		p.end(p.takeUnfit())
		return
	}
	p.Wake()
}

func (p *Pool[T]) takeUnfit() (items []T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	items, p.unfit = p.unfit, nil
	return items
}

// Yield ends the ready item that will be missed least, to make room for one that is made elsewhere. It
// returns false if there is none.
func (p *Pool[T]) Yield() bool {
	p.mu.Lock()
	if p.readyLocked() == 0 {
		p.mu.Unlock()
		return false
	}
	value := p.oldestLocked()
	p.mu.Unlock()
	p.End(value)
	return true
}

// Kinds are the kinds of the items that are ready, are being made or are wanted.
func (p *Pool[T]) Kinds() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.kinds))
}

// Drop ends the ready items of a kind. An item that is being made ends soon after. A later Take wants items of the
// kind again.
func (p *Pool[T]) Drop(name string) {
	p.mu.Lock()
	var dropped []T
	if k := p.kinds[name]; k != nil {
		k.wanted = 0
		dropped = k.takeWhere(func(Item[T]) bool { return true })
		p.ending += len(dropped)
	}
	p.mu.Unlock()
	p.end(dropped)
	p.Wake()
}

// wantLocked wants one more item of a kind. If the owner has all of its share, or the pool is full, another
// kind has one less: one of the owner if there is one.
func (p *Pool[T]) wantLocked(k *kind[T], share int) {
	var own, all int
	for _, other := range p.kinds {
		all += other.wanted
		if other.owner == k.owner {
			own += other.wanted
		}
	}
	isOther := func(other *kind[T]) bool { return other != k && other.wanted > 0 }
	ownOldest := p.leastAskedLocked(func(other *kind[T]) bool { return isOther(other) && other.owner == k.owner })
	from := cmp.Or(ownOldest, p.leastAskedLocked(isOther))
	if own >= share {
		from = ownOldest
	} else if all < p.config.Max {
		from = &kind[T]{wanted: 1}
	}
	if from != nil {
		from.wanted--
		k.wanted++
	}
}

// Elsewhere notes that an item is being made for a request that found none, until the returned
// function is called. While such requests keep all processors busy, the pool makes few items: see [busyPause].
func (p *Pool[T]) Elsewhere() (done func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cold++
	return func() {
		p.mu.Lock()
		p.cold--
		p.mu.Unlock()
		p.Wake()
	}
}

// Resize changes the bounds. Items above Max end.
func (p *Pool[T]) Resize(c spec.PoolConfig) {
	p.mu.Lock()
	p.config = c
	all := 0
	for _, k := range p.kinds {
		all += k.wanted
	}
	for ; all > c.Max; all-- {
		p.leastAskedLocked(func(k *kind[T]) bool { return k.wanted > 0 }).wanted--
	}
	p.mu.Unlock()
	p.Wake()
}

// Close ends all items, and waits for the end of those that are being made. A second call waits for the
// first one.
func (p *Pool[T]) Close() {
	p.closing.Do(func() {
		p.mu.Lock()
		p.closed = true
		p.mu.Unlock()
		p.stop()
		p.endAll() // first: an item that is being made can take long
		p.ended.Wait()
		p.endAll()
	})
}

// endAll ends all items that are in the pool.
func (p *Pool[T]) endAll() {
	p.mu.Lock()
	var left []T
	for _, k := range p.kinds {
		left = append(left, k.takeWhere(func(Item[T]) bool { return true })...)
	}
	p.ending += len(left)
	p.mu.Unlock()
	p.end(append(left, p.takeUnfit()...))
}

// Wake has the pool look at its items now.
func (p *Pool[T]) Wake() {
	for _, c := range []chan struct{}{p.wakeMaker, p.wakeKeeper} {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// lookEvery is the time between two looks at the items.
const lookEvery = time.Second

// repeat calls f at each look and each time that it is woken, until the context ends.
func repeat(ctx context.Context, wake <-chan struct{}, f func()) {
	clock := time.NewTicker(lookEvery)
	defer clock.Stop()
	for ctx.Err() == nil {
		f()
		select {
		case <-ctx.Done():
		case <-wake:
		case <-clock.C:
		}
	}
}

// noteFailure counts a failure.
func (p *Pool[T]) noteFailure(err error) {
	p.mu.Lock()
	p.counts.Failed++
	p.counts.LastError = err.Error()
	p.mu.Unlock()
	p.maker.Failed(err)
}

func (p *Pool[T]) readyLocked() (n int) {
	for _, k := range p.kinds {
		n += len(k.ready)
	}
	return n
}

// oldestLocked takes out an item of the kind whose last request is the oldest.
func (p *Pool[T]) oldestLocked() (value T) {
	from := p.leastAskedLocked(func(k *kind[T]) bool { return len(k.ready) > 0 })
	value = from.ready[0].Value
	from.ready = slices.Delete(from.ready, 0, 1)
	return value
}

// leastAskedLocked is the kind whose last request is the oldest, of those that are chosen.
func (p *Pool[T]) leastAskedLocked(isChosen func(*kind[T]) bool) (oldest *kind[T]) {
	for _, k := range p.kinds {
		if isChosen(k) && (oldest == nil || k.asked.Before(oldest.asked)) {
			oldest = k
		}
	}
	return oldest
}
