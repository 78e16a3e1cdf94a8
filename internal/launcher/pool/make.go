package pool

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"time"
)

// makers is how many items are made at a time: one processor stays free.
func makers() int { return max(1, runtime.GOMAXPROCS(0)-1) }

// makeAll begins to make the items that are wanted, as far as they can be made now.
func (p *Pool[T]) makeAll(ctx context.Context) {
	for p.isAnyDue() {
		if err := p.maker.Room(); err != nil {
			p.pauseWithoutRoom(err)
			return
		}
		name, number, isNext, ok := p.next(time.Now())
		if !ok {
			return
		}
		p.ended.Go(func() {
			value, err := p.maker.Make(ctx, name, isNext)
			p.acceptItem(name, value, number, err)
			p.Wake()
		})
	}
}

func (p *Pool[T]) isAnyDue() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	name, _ := p.dueLocked(time.Now())
	return name != ""
}

// pauseWithoutRoom counts as no failure: the host has room later.
func (p *Pool[T]) pauseWithoutRoom(err error) {
	p.mu.Lock()
	p.noRoom.begin(time.Now())
	p.counts.LastError = err.Error()
	p.mu.Unlock()
	p.maker.Failed(fmt.Errorf("none is made for now: %w", err))
}

// turnTime is how long an item that was made for an owner counts, when owners take turns.
const turnTime = time.Minute

// busyPause is the time between two items while requests without an item keep all processors busy. Without such
// items, one user could keep the pool empty for all users: each request of the user has a new kind.
const busyPause = 250 * time.Millisecond

// next begins the item that is due. isNext says that no further item of its kind is wanted.
func (p *Pool[T]) next(now time.Time) (name string, number int, isNext, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	name, k := p.dueLocked(now)
	if k == nil {
		return "", 0, false, false
	}
	p.noRoom = pause{}
	k.making++
	p.making++
	p.number++
	p.turns[k.owner], p.begun = now, now
	return name, p.number, len(k.ready)+k.making >= k.wanted, true
}

// dueLocked is the kind of the item to make. Owners take turns. Of one owner the kind that was asked for
// last comes first.
func (p *Pool[T]) dueLocked(now time.Time) (name string, due *kind[T]) {
	isBusy := p.making+p.cold >= makers() && (p.making > 0 || now.Sub(p.begun) < busyPause)
	if p.closed || isBusy || now.Before(p.noRoom.until) || p.readyLocked()+p.making+p.ending >= p.config.Max {
		return "", nil
	}
	for n, k := range p.kinds {
		if !k.isDue(now) {
			continue
		}
		if due == nil || cmp.Or(p.turns[k.owner].Compare(p.turns[due.owner]), due.asked.Compare(k.asked)) < 0 {
			name, due = n, k
		}
	}
	return name, due
}

// acceptItem takes over an item that was made, or the error.
func (p *Pool[T]) acceptItem(name string, value T, number int, err error) {
	p.mu.Lock()
	p.making--
	k := p.kinds[name]
	k.making--
	now := time.Now()
	if err != nil {
		k.failed.begin(now)
		if name != p.first {
			k.wanted = min(k.wanted, len(k.ready)+k.making)
		}
		p.mu.Unlock()
		if err != context.Canceled && err != ErrUnwanted { // a joined error has more to tell
			p.noteFailure(fmt.Errorf("make one: %w", err))
		}
		return
	}
	k.failed = pause{}
	if !p.closed {
		k.addReady(newItem(value, number, now))
	}
	closed := p.closed
	p.mu.Unlock()
	if closed {
		p.End(value)
	}
}
