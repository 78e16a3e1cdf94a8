package pool

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"
)

// A kind has the items of one kind.
type kind[T any] struct {
	owner uint32
	// ready are the items that can be taken, from the oldest to the newest.
	ready  []Item[T]
	making int
	// wanted is the number of items that should be ready.
	wanted int
	asked  time.Time // the time of the last Take
	taken  time.Time // the time of the last Take that got an item
	// failed is the pause after an item could not be made.
	failed pause
}

// A pause follows a failure. It is longer after each further one.
type pause struct {
	length time.Duration
	until  time.Time
}

const (
	firstPause = time.Second
	mostPause  = time.Minute
)

func (p *pause) begin(now time.Time) {
	p.length = min(max(2*p.length, firstPause), mostPause)
	p.until = now.Add(p.length)
}

// isForgotten says that the pause ended so long ago that the next failure counts as the first one.
func (p *pause) isForgotten(now time.Time) bool { return now.After(p.until.Add(p.length)) }

// An Item is in a pool, or was taken out of one.
type Item[T any] struct {
	Value T
	// number is greater for an item that was begun later.
	number  int
	made    time.Time
	checked time.Time
	// part is the part of the maximum age that the item may reach: items of one age do not end at once.
	part float64
}

// leastPart is the least part of the maximum age.
const leastPart = 0.8

func newItem[T any](value T, number int, now time.Time) Item[T] {
	return Item[T]{value, number, now, now, leastPart + (1-leastPart)*rand.Float64()}
}

func (i Item[T]) isOld(now time.Time, maxAge time.Duration) bool {
	return now.Sub(i.made) > time.Duration(i.part*float64(maxAge))
}

// addReady makes an item ready.
func (k *kind[T]) addReady(item Item[T]) {
	at, _ := slices.BinarySearchFunc(k.ready, item, func(a, b Item[T]) int { return cmp.Compare(a.number, b.number) })
	k.ready = slices.Insert(k.ready, at, item)
}

// takeWhere takes the chosen items out.
func (k *kind[T]) takeWhere(isChosen func(Item[T]) bool) (taken []T) {
	k.ready = slices.DeleteFunc(k.ready, func(i Item[T]) bool {
		if isChosen(i) {
			taken = append(taken, i.Value)
			return true
		}
		return false
	})
	return taken
}

// settleTime is how long no item is made after one was taken: the caller that has taken the item works then.
const settleTime = 50 * time.Millisecond

// isDue says whether to make an item now. It cannot wait while the kind lacks more than one item and more than half
// of its items: many callers take items then.
func (k *kind[T]) isDue(now time.Time) bool {
	have := len(k.ready) + k.making
	return have < k.wanted && !now.Before(k.failed.until) && (have+1 < k.wanted && 2*have < k.wanted || now.Sub(k.taken) >= settleTime)
}
