package pool

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A Maker makes the items of a pool. Its functions may be called at once, by several goroutines.
type Maker[T any] struct {
	// Make makes an item of a kind.
	Make func(ctx context.Context, kind string) (T, error)
	// Check returns an error if an item cannot be used any more.
	Check func(ctx context.Context, item T) error
	// End ends an item that nobody took.
	End func(item T) error
	// Room returns an error if the host has no room for another item now.
	Room func() error
}

// A Pool keeps items ready. Each item is of one kind, and is taken once.
type Pool[T any] struct {
	maker Maker[T]
	wake  chan struct{}
	stop  context.CancelFunc
	ended sync.WaitGroup

	mu     sync.Mutex
	config spec.PoolConfig
	first  string // the kind of the items that stay ready if nobody asks for any
	kinds  map[string]*kind[T]
	making int
	cold   int // items that are being made elsewhere, for a request that found none
	retry  time.Time
	pause  time.Duration
	closed bool
	counts Counts
}

// kind are the items of one kind.
type kind[T any] struct {
	owner  uint32
	ready  []Item[T]
	making int
	// wanted is the number of items that should be ready.
	wanted int
	asked  time.Time // the time of the last Take
}

// An Item is in a pool, or was taken out of one.
type Item[T any] struct {
	Value   T
	made    time.Time
	checked time.Time
}

// Start returns a pool that keeps items of the first kind ready from now on. The caller must close
// the pool.
func Start[T any](c spec.PoolConfig, first string, m Maker[T]) *Pool[T] {
	ctx, stop := context.WithCancel(context.Background())
	p := &Pool[T]{maker: m, wake: make(chan struct{}, 1), stop: stop, config: c, first: first, kinds: map[string]*kind[T]{}}
	p.kinds[first] = &kind[T]{wanted: min(max(c.WarmUp, c.Min), c.Max), asked: time.Now()}
	p.ended.Go(func() { p.tend(ctx) })
	return p
}

// Take takes the newest item of a kind. The caller owns the item. If none is ready, Take returns
// false, and more items of the kind are made for later. All kinds of one owner together have at
// most so many items as their share.
func (p *Pool[T]) Take(name string, owner uint32, share int) (taken Item[T], ok bool) {
	time.AfterFunc(settleTime, p.Wake)
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
		p.wantLocked(k, min(share, p.config.Max))
		return taken, false
	}
	last := len(k.ready) - 1
	taken = k.ready[last]
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
		k.ready = append(k.ready, taken)
	}
	p.mu.Unlock()
	if !kept {
		p.End(taken.Value)
	}
}

// Yield ends the ready item that nobody will miss the most, to make room for one that is made elsewhere.
// It returns false if there is none.
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

// wantLocked wants one more item of a kind. If the owner has all of its share, another kind of the
// owner, or else of the pool, has one less.
func (p *Pool[T]) wantLocked(k *kind[T], share int) {
	var own, all int
	var ownOldest, oldest *kind[T]
	for _, other := range p.kinds {
		all += other.wanted
		if other.wanted == 0 || other == k {
			continue
		}
		if oldest == nil || other.asked.Before(oldest.asked) {
			oldest = other
		}
		if other.owner != k.owner {
			continue
		}
		own += other.wanted
		if ownOldest == nil || other.asked.Before(ownOldest.asked) {
			ownOldest = other
		}
	}
	from := oldest
	if own+k.wanted >= share {
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
// function is called. The pool makes none beside it on the last processor.
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
	p.mu.Unlock()
	p.Wake()
}

// Close ends all items, and waits for the end of those that are being made.
func (p *Pool[T]) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.stop()
	p.ended.Wait()
	p.mu.Lock()
	var left []T
	for _, k := range p.kinds {
		left = append(left, k.takeWhere(func(Item[T]) bool { return true })...)
	}
	p.mu.Unlock()
	p.end(left)
}

// Wake has the pool look at its items now.
func (p *Pool[T]) Wake() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// lookEvery is the time between two looks at the age of the items.
const lookEvery = time.Second

// tend keeps the items in number and in health.
func (p *Pool[T]) tend(ctx context.Context) {
	clock := time.NewTicker(lookEvery)
	defer clock.Stop()
	for ctx.Err() == nil {
		p.end(p.takeSurplus(time.Now()))
		p.checkNext(ctx)
		for p.makeNext(ctx) {
		}
		select {
		case <-ctx.Done():
		case <-p.wake:
		case <-clock.C:
		}
	}
}

// end ends items one after another: the removals are slower beside each other.
func (p *Pool[T]) end(items []T) {
	for _, i := range items {
		p.End(i)
	}
}

// End ends an item that was taken and cannot be used. An error counts as a failure.
func (p *Pool[T]) End(value T) {
	if err := p.maker.End(value); err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.noteLocked(err)
	}
}

// takeWhere takes the items out for which is returns true.
func (k *kind[T]) takeWhere(is func(Item[T]) bool) (taken []T) {
	k.ready = slices.DeleteFunc(k.ready, func(i Item[T]) bool {
		if is(i) {
			taken = append(taken, i.Value)
			return true
		}
		return false
	})
	return taken
}

// takeSurplus takes out the items that are too old or too many. It forgets kinds that nobody has
// asked for.
func (p *Pool[T]) takeSurplus(now time.Time) (surplus []T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fadeLocked(now)
	for name, k := range p.kinds {
		surplus = append(surplus, k.takeWhere(func(i Item[T]) bool { return now.Sub(i.made) > time.Duration(p.config.MaxAge) })...)
		for len(k.ready) > k.wanted {
			surplus = append(surplus, k.ready[0].Value)
			k.ready = slices.Delete(k.ready, 0, 1)
		}
		if name != p.first && k.wanted == 0 && k.making == 0 {
			delete(p.kinds, name)
		}
	}
	for p.readyLocked() > p.config.Max {
		surplus = append(surplus, p.oldestLocked())
	}
	return surplus
}

// fadeLocked wants no more items of kinds that nobody asks for. The first kind makes up the least
// number of items.
func (p *Pool[T]) fadeLocked(now time.Time) {
	isIdle := func(k *kind[T]) bool { return now.Sub(k.asked) > time.Duration(p.config.IdleTimeout) }
	others := 0
	for name, k := range p.kinds {
		if name == p.first {
			continue
		}
		if isIdle(k) {
			k.wanted = 0
		}
		others += k.wanted
	}
	first := p.kinds[p.first]
	least := max(0, p.config.Min-others)
	if isIdle(first) {
		first.wanted = least
	}
	first.wanted = max(first.wanted, least)
}

func (p *Pool[T]) readyLocked() (n int) {
	for _, k := range p.kinds {
		n += len(k.ready)
	}
	return n
}

// oldestLocked takes out an item of the kind that was not asked for the longest.
func (p *Pool[T]) oldestLocked() (value T) {
	var from *kind[T]
	for _, k := range p.kinds {
		if len(k.ready) > 0 && (from == nil || k.asked.Before(from.asked)) {
			from = k
		}
	}
	value = from.ready[0].Value
	from.ready = slices.Delete(from.ready, 0, 1)
	return value
}

// makers is how many items are made at a time: one processor stays free.
func makers() int { return max(1, runtime.GOMAXPROCS(0)-1) }

// makeNext begins to make an item, if one is wanted. It returns false if none can be made now.
func (p *Pool[T]) makeNext(ctx context.Context) bool {
	name, ok := p.next(time.Now())
	if !ok {
		return false
	}
	p.ended.Go(func() {
		value, err := p.maker.Make(ctx, name)
		if err != nil && ctx.Err() != nil {
			err = errEnded
		}
		p.made(name, value, err)
		p.Wake()
	})
	return true
}

// errEnded says that an item was not made because the pool was closed.
var errEnded = errors.New("the pool was closed")

// next chooses the kind of the item to make. Kinds that were asked for last come first.
func (p *Pool[T]) next(now time.Time) (name string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || now.Before(p.retry) || p.making+p.cold >= makers() || p.readyLocked()+p.making >= p.config.Max {
		return "", false
	}
	var best *kind[T]
	for n, k := range p.kinds {
		if k.isDue(now) && (best == nil || k.asked.After(best.asked)) {
			name, best = n, k
		}
	}
	if best == nil {
		return "", false
	}
	if err := p.maker.Room(); err != nil {
		p.failedLocked(now, err)
		return "", false
	}
	best.making++
	p.making++
	return name, true
}

// settleTime is how long no item is made after a Take: the caller that has taken one works then.
const settleTime = 50 * time.Millisecond

// isDue says whether to make an item now. If less than half of the items are ready, it cannot wait.
func (k *kind[T]) isDue(now time.Time) bool {
	have := len(k.ready) + k.making
	return have < k.wanted && (2*have < k.wanted || now.Sub(k.asked) >= settleTime)
}

// Pauses after an item could not be made.
const (
	firstPause = time.Second
	mostPause  = time.Minute
)

func (p *Pool[T]) failedLocked(now time.Time, err error) {
	p.pause = min(max(2*p.pause, firstPause), mostPause)
	p.retry = now.Add(p.pause)
	p.noteLocked(err)
}

func (p *Pool[T]) noteLocked(err error) {
	p.counts.Failed++
	p.counts.LastError = err.Error()
}

// made takes over an item that was made.
func (p *Pool[T]) made(name string, value T, err error) {
	p.mu.Lock()
	p.making--
	k := p.kinds[name]
	k.making--
	now := time.Now()
	if err != nil {
		if !errors.Is(err, errEnded) {
			p.failedLocked(now, err)
		}
		p.mu.Unlock()
		return
	}
	p.pause = 0
	p.counts.Made++
	if !p.closed {
		k.ready = append(k.ready, Item[T]{value, now, now})
	}
	closed := p.closed
	p.mu.Unlock()
	if closed {
		p.End(value)
	}
}

// checkNext checks the items whose check is due. It takes an item out meanwhile: nobody takes an
// item that is being checked.
func (p *Pool[T]) checkNext(ctx context.Context) {
	for {
		name, i, ok := p.takeDue(time.Now())
		if !ok {
			return
		}
		err := p.maker.Check(ctx, i.Value)
		p.mu.Lock()
		k := p.kinds[name]
		k.making--
		if err == nil {
			i.checked = time.Now()
			k.ready = append([]Item[T]{i}, k.ready...)
		} else {
			p.counts.Unhealthy++
		}
		p.mu.Unlock()
		if err != nil {
			p.End(i.Value)
		}
	}
}

// takeDue takes out an item whose check is due. It counts as an item that is being made.
func (p *Pool[T]) takeDue(now time.Time) (name string, due Item[T], ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, k := range p.kinds {
		for n, i := range k.ready {
			if now.Sub(i.checked) >= time.Duration(p.config.CheckEvery) {
				k.ready = slices.Delete(k.ready, n, n+1)
				k.making++
				return name, i, true
			}
		}
	}
	return "", due, false
}
