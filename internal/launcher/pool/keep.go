package pool

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// keep ends the surplus, and checks what has to be checked.
func (p *Pool[T]) keep(ctx context.Context) {
	if surplus := p.takeSurplus(time.Now()); len(surplus) > 0 {
		p.end(surplus)
		p.Wake() // there is room for others
	}
	p.checkAll(ctx)
}

// endsAtATime is how many items end at a time: more removals are slower beside each other.
const endsAtATime = 4

// end ends items that are counted as ending.
func (p *Pool[T]) end(items []T) {
	var ending sync.WaitGroup
	places := make(chan struct{}, endsAtATime)
	for _, i := range items {
		places <- struct{}{}
		ending.Go(func() {
			p.End(i)
			p.mu.Lock()
			p.ending--
			p.mu.Unlock()
			<-places
		})
	}
	ending.Wait()
}

// End ends an item that was taken and cannot be used. An error counts as a failure.
func (p *Pool[T]) End(value T) {
	if err := p.maker.End(value); err != nil {
		p.noteFailure(fmt.Errorf("end one: %w", err))
	}
}

// takeSurplus takes out the items that are unfit, too old or too many. It forgets kinds that nobody has
// asked for.
func (p *Pool[T]) takeSurplus(now time.Time) (surplus []T) {
	unfit := p.takeUnfit()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fadeLocked(now)
	for name, k := range p.kinds {
		surplus = append(surplus, k.takeWhere(func(i Item[T]) bool { return i.isOld(now, time.Duration(p.config.MaxAge)) })...)
		for len(k.ready) > k.wanted {
			surplus = append(surplus, k.ready[0].Value)
			k.ready = slices.Delete(k.ready, 0, 1)
		}
		if name != p.first && k.wanted == 0 && k.making == 0 && k.failed.isForgotten(now) {
			delete(p.kinds, name)
		}
	}
	maps.DeleteFunc(p.turns, func(_ uint32, at time.Time) bool { return now.Sub(at) > turnTime })
	for p.readyLocked() > p.config.Max {
		surplus = append(surplus, p.oldestLocked())
	}
	p.ending += len(surplus)
	return append(surplus, unfit...)
}

// fadeLocked wants no more items of kinds that nobody asks for. If the other kinds have fewer than the
// least number of items, the first kind has the rest.
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

// checkAll checks the items whose check is due. It takes an item out meanwhile: nobody takes an item that
// is being checked.
func (p *Pool[T]) checkAll(ctx context.Context) {
	for ctx.Err() == nil {
		name, i, isNext, ok := p.takeDue(time.Now())
		if !ok {
			return
		}
		err := p.maker.Check(ctx, i.Value, isNext)
		p.mu.Lock()
		k := p.kinds[name]
		k.making--
		if err == nil {
			i.checked = time.Now()
			k.addReady(i)
		} else {
			p.counts.Unhealthy++
		}
		p.mu.Unlock()
		if err != nil {
			p.EndLater(i.Value, err)
		}
	}
}

// takeDue takes out an item whose check is due. It counts as an item that is being made. isNext says that the item was
// the newest one of its kind.
func (p *Pool[T]) takeDue(now time.Time) (name string, due Item[T], isNext, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, k := range p.kinds {
		for n, i := range k.ready {
			if now.Sub(i.checked) >= time.Duration(p.config.CheckEvery) {
				isNext = n == len(k.ready)-1
				k.ready = slices.Delete(k.ready, n, n+1)
				k.making++
				return name, i, isNext, true
			}
		}
	}
	return "", due, false, false
}
