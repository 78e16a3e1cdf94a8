package pool

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A workshop makes numbered items, and notes their ends.
type workshop struct {
	mu sync.Mutex
	// takes and endTakes are the times of Make and End.
	takes, endTakes time.Duration
	made            int
	ended           []int
	// taken are the items that were taken and not given back.
	taken map[int]bool
	// next are the items that were said to be taken next, at their make or their last check.
	next map[int]bool
	// hangs has checks last until their context ends.
	hangs bool
	told  []error
	// Items of the kind unmade cannot be made. Nobody can take items of the kind unwanted.
	unmade, unwanted string
	sick             map[int]bool
	fails            error
	room             error
	atOnce           int
	most             int
}

func newWorkshop() *workshop {
	return &workshop{sick: map[int]bool{}, taken: map[int]bool{}, next: map[int]bool{}}
}

func (w *workshop) maker() Maker[int] {
	return Maker[int]{
		Make: func(_ context.Context, kind string, isNext bool) (int, error) {
			w.mu.Lock()
			w.atOnce++
			w.most = max(w.most, w.atOnce)
			takes := w.takes
			w.mu.Unlock()
			time.Sleep(takes)
			w.mu.Lock()
			defer w.mu.Unlock()
			w.atOnce--
			if w.fails != nil {
				return 0, w.fails
			}
			if kind == w.unmade {
				return 0, errors.New("cannot be made")
			}
			if kind == w.unwanted {
				return 0, ErrUnwanted
			}
			w.made++
			w.next[w.made] = isNext
			return w.made, nil
		},
		Check: func(ctx context.Context, item int, isNext bool) error {
			w.mu.Lock()
			hangs := w.hangs
			w.mu.Unlock()
			if hangs {
				<-ctx.Done()
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.sick[item] {
				return errors.New("sick")
			}
			w.next[item] = isNext
			return nil
		},
		End: func(item int) error {
			w.mu.Lock()
			takes := w.endTakes
			w.mu.Unlock()
			time.Sleep(takes)
			w.mu.Lock()
			defer w.mu.Unlock()
			w.ended = append(w.ended, item)
			return w.fails
		},
		Room: func() error {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.room
		},
		Failed: func(err error) { w.set(func() { w.told = append(w.told, err) }) },
	}
}

// take is [Pool.Take], and notes what was taken.
func (w *workshop) take(p *Pool[int], kind string, owner uint32, share int) (Item[int], bool) {
	item, ok := p.Take(kind, owner, share)
	if ok {
		w.set(func() { w.taken[item.Value] = true })
	}
	return item, ok
}

func (w *workshop) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// inBubble runs a test of a pool on a clock of its own. The pool is closed, and each item must be taken or
// ended, and that once.
func inBubble(t *testing.T, c spec.PoolConfig, test func(t *testing.T, w *workshop, p *Pool[int])) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c, err := c.Complete()
		if err != nil {
			t.Fatal(err)
		}
		w := newWorkshop()
		w.takes = 10 * time.Millisecond
		p := Start(c, "first", w.maker())
		test(t, w, p)
		p.Close()
		if n := p.Counts(nil); n.Ready != 0 || n.Making != 0 {
			t.Errorf("left after the end: %+v", n)
		}
		ends := map[int]int{}
		for _, item := range w.ended {
			ends[item]++
		}
		for item := range w.taken {
			ends[item]++
		}
		for item := range w.made {
			if n := ends[item+1]; n != 1 {
				t.Errorf("item %d was taken or ended %d times, of %d items", item+1, n, w.made)
			}
		}
	})
}

func wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (p *Pool[T]) ready(t *testing.T, want int) {
	t.Helper()
	if n := p.Counts(nil).Ready; n != want {
		t.Errorf("%d are ready, want %d", n, want)
	}
}

func (w *workshop) mustTake(t *testing.T, p *Pool[int], kind string, owner uint32, want bool) {
	t.Helper()
	if _, ok := w.take(p, kind, owner, p.Config().Max); ok != want {
		t.Errorf("took one: %v, want %v", ok, want)
	}
}

func TestWarmUpFadesToTheLeastNumber(t *testing.T) {
	inBubble(t, spec.PoolConfig{}, func(t *testing.T, w *workshop, p *Pool[int]) {
		wait(time.Second)
		p.ready(t, 10)
		if most := max(1, runtime.GOMAXPROCS(0)-1); w.most > most {
			t.Errorf("%d were made at a time, want %d at most", w.most, most)
		}
		wait(301 * time.Second)
		p.ready(t, 5)
		if len(w.ended) != 5 {
			t.Errorf("ended: %v", w.ended)
		}
	})
}

// Each item is taken once, and is replaced.
func TestItemsAreTakenOnce(t *testing.T) {
	inBubble(t, spec.PoolConfig{WarmUp: 5}, func(t *testing.T, w *workshop, p *Pool[int]) {
		taken := map[int]bool{}
		for range 50 {
			wait(time.Second)
			item, ok := w.take(p, "first", 0, 50)
			if !ok || taken[item.Value] {
				t.Fatalf("got %d, %v", item.Value, ok)
			}
			taken[item.Value] = true
		}
		wait(time.Second)
		p.ready(t, 5)
		for _, item := range w.ended {
			if taken[item] {
				t.Errorf("%d was taken, and ended by the pool", item)
			}
		}
	})
}

// The last item of a small kind is replaced once its caller has worked for a while: the making would take the caller's
// processor. A request that comes meanwhile does not delay this, and items of a large kind are replaced at once.
func TestTheMakerLeavesTheProcessorToTheCaller(t *testing.T) {
	inBubble(t, spec.PoolConfig{Min: 1, WarmUp: 1, Max: 1}, func(t *testing.T, w *workshop, p *Pool[int]) {
		wait(time.Second)
		w.mustTake(t, p, "first", 0, true)
		wait(settleTime - w.takes)
		w.mustTake(t, p, "first", 0, false)
		wait(w.takes - time.Millisecond)
		w.set(func() {
			if w.made != 1 || w.atOnce != 0 {
				t.Errorf("%d items were made, and %d are being made", w.made, w.atOnce)
			}
		})
		wait(w.takes + 2*time.Millisecond)
		if p.Counts(nil).Ready == 0 {
			t.Error("none was made")
		}
	})
	inBubble(t, spec.PoolConfig{Min: 8, WarmUp: 8, Max: 8}, func(t *testing.T, w *workshop, p *Pool[int]) {
		wait(time.Second)
		for range 6 {
			w.mustTake(t, p, "first", 0, true)
		}
		wait(3 * w.takes)
		p.ready(t, 4)
	})
}

// A kind that is asked for gets items, as many as were missed, and loses them when nobody asks any
// more.
func TestDemandMakesItemsOfAKind(t *testing.T) {
	inBubble(t, spec.PoolConfig{Min: 1, WarmUp: 1, Max: 8}, func(t *testing.T, w *workshop, p *Pool[int]) {
		wait(time.Second)
		for range 3 {
			w.mustTake(t, p, "other", 0, false)
		}
		wait(time.Second)
		p.ready(t, 4)
		for range 3 {
			w.mustTake(t, p, "other", 0, true)
		}
		w.mustTake(t, p, "other", 0, false)
		wait(303 * time.Second)
		p.ready(t, 1)
	})
}

func TestNoMoreThanMaxAreReady(t *testing.T) {
	inBubble(t, spec.PoolConfig{Min: 2, WarmUp: 2, Max: 4}, func(t *testing.T, w *workshop, p *Pool[int]) {
		wait(time.Second)
		for range 20 {
			w.mustTake(t, p, "other", 0, false)
		}
		wait(time.Second)
		p.ready(t, 4)
		// The other kind has taken the place of the first one.
		for range 4 {
			w.mustTake(t, p, "other", 0, true)
		}
	})
}

// A user cannot push the items of others out.
func TestAUserHasAShare(t *testing.T) {
	inBubble(t, spec.PoolConfig{Min: 4, WarmUp: 4, Max: 8}, func(t *testing.T, w *workshop, p *Pool[int]) {
		wait(time.Second)
		const user, share = 1000, 2
		for _, kind := range []string{"a", "b", "c", "d", "e"} {
			for range 10 {
				if _, ok := w.take(p, kind, user, share); ok {
					t.Errorf("took one of %s, which is new", kind)
				}
			}
		}
		wait(time.Second)
		owner := uint32(user)
		if n := p.Counts(&owner).Ready; n != share {
			t.Errorf("the user has %d items, want %d", n, share)
		}
		for range 4 {
			w.mustTake(t, p, "first", 0, true)
		}
	})
}

// The item that is taken next is known when it is made, and also later: items keep their order when they are checked
// or given back.
func TestTheNextItemIsKnown(t *testing.T) {
	const all = 4
	inBubble(t, spec.PoolConfig{Min: all, WarmUp: all, Max: all, CheckEvery: spec.Duration(time.Minute)}, func(t *testing.T, w *workshop, p *Pool[int]) {
		for round := range 3 {
			wait(40 * time.Second) // there was a check since the last round, or not
			one, _ := w.take(p, "first", 0, all)
			older, _ := w.take(p, "first", 0, all)
			p.Return("first", one)
			p.Return("first", older)
			again, _ := p.Take("first", 0, all)
			p.Return("first", again)
			if again.Value != one.Value {
				t.Errorf("round %d: got item %d after the return of %d", round, again.Value, one.Value)
			}
			w.set(func() {
				next, others := w.next[one.Value], 0
				delete(w.taken, one.Value)
				delete(w.taken, older.Value)
				for item, isNext := range w.next {
					if isNext && !w.taken[item] {
						others++
					}
				}
				if !next || others != 1 {
					t.Errorf("round %d: got item %d of %v", round, one.Value, w.next)
				}
			})
			for range round {
				w.mustTake(t, p, "first", 0, true)
			}
		}
	})
}

func TestOldItemsAreReplaced(t *testing.T) {
	inBubble(t, spec.PoolConfig{Min: 3, WarmUp: 3, Max: 3, MaxAge: spec.Duration(time.Minute)}, func(t *testing.T, w *workshop, p *Pool[int]) {
		wait(time.Second)
		wait(62 * time.Second)
		p.ready(t, 3)
		if w.made != 6 || len(w.ended) != 3 {
			t.Errorf("made %d, ended %v", w.made, w.ended)
		}
	})
}

// An item that is given back again and again grows old.
func TestAnItemGivenBackKeepsItsAge(t *testing.T) {
	inBubble(t, spec.PoolConfig{Min: 1, WarmUp: 1, Max: 1, MaxAge: spec.Duration(time.Minute)}, func(t *testing.T, w *workshop, p *Pool[int]) {
		for range 70 {
			wait(time.Second)
			if one, ok := p.Take("first", 0, 1); ok {
				p.Return("first", one)
			}
		}
		if len(w.ended) != 1 {
			t.Errorf("ended %v, want the first", w.ended)
		}
	})
}

func TestSickItemsAreReplaced(t *testing.T) {
	inBubble(t, spec.PoolConfig{Min: 3, WarmUp: 3, Max: 3}, func(t *testing.T, w *workshop, p *Pool[int]) {
		wait(time.Second)
		w.set(func() { w.sick[2] = true })
		wait(32 * time.Second)
		p.ready(t, 3)
		if len(w.ended) != 1 || w.ended[0] != 2 || p.Counts(nil).Unhealthy != 1 {
			t.Errorf("ended %v, %+v", w.ended, p.Counts(nil))
		}
	})
}

// After a failure the pool waits, longer each time. It goes on later.
func TestFailuresArePaused(t *testing.T) {
	inBubble(t, spec.PoolConfig{Min: 1, WarmUp: 1}, func(t *testing.T, w *workshop, p *Pool[int]) {
		w.set(func() { w.fails = errors.New("no room") })
		wait(10 * time.Minute)
		if n := p.Counts(nil); n.Failed < 8 || n.Failed > 20 || n.LastError != "make one: no room" || len(w.told) != n.Failed {
			t.Errorf("%+v, told %v", n, w.told)
		}
		w.set(func() { w.fails = nil })
		wait(61 * time.Second)
		p.ready(t, 1)
	})
}

// Items that cannot be made take the place and the time of no others.
func TestAFailingKindLeavesTheOthersAlone(t *testing.T) {
	inBubble(t, spec.PoolConfig{Min: 3, WarmUp: 3, Max: 8}, func(t *testing.T, w *workshop, p *Pool[int]) {
		w.set(func() { w.unmade = "bad" })
		wait(time.Second)
		for range 120 {
			for range 10 {
				w.mustTake(t, p, "bad", 1000, false)
				wait(100 * time.Millisecond)
			}
			w.mustTake(t, p, "first", 0, true)
		}
		if n := p.Counts(nil).Failed; n < 5 || n > 12 {
			t.Errorf("%d items of the kind were tried in two minutes", n)
		}
	})
}

// It is no failure that nobody can take items of a kind any more.
func TestAnUnwantedKindIsNoFailure(t *testing.T) {
	inBubble(t, spec.PoolConfig{Min: 1, WarmUp: 1, Max: 8}, func(t *testing.T, w *workshop, p *Pool[int]) {
		w.set(func() { w.unwanted = "gone" })
		w.mustTake(t, p, "gone", 1000, false)
		wait(10 * time.Second)
		if n := p.Counts(nil); n.Failed != 0 || n.LastError != "" || n.Making != 0 || len(w.told) > 0 {
			t.Errorf("%+v, told %v", n, w.told)
		}
		p.ready(t, 1)
	})
}

// A kind of which one item could not be made keeps those that are ready.
func TestAFailureEndsNoReadyItem(t *testing.T) {
	inBubble(t, spec.PoolConfig{Min: 1, WarmUp: 1, Max: 8}, func(t *testing.T, w *workshop, p *Pool[int]) {
		for range 3 {
			w.mustTake(t, p, "other", 1000, false)
		}
		wait(time.Second)
		w.set(func() { w.unmade = "other" })
		w.mustTake(t, p, "other", 1000, true)
		wait(time.Second)
		if n := p.Counts(nil).Failed; n != 1 {
			t.Errorf("%d items could not be made, want 1", n)
		}
		for range 2 {
			w.mustTake(t, p, "other", 1000, true)
		}
		w.mustTake(t, p, "other", 1000, false)
	})
}

// Items that are slow to end hold up no others, and the pool is not closed before they have ended.
func TestItemsThatEndSlowly(t *testing.T) {
	inBubble(t, spec.PoolConfig{Min: 8, WarmUp: 8, Max: 10}, func(t *testing.T, w *workshop, p *Pool[int]) {
		wait(time.Second)
		w.set(func() { w.endTakes = 30 * time.Second })
		for range 2 {
			item, _ := p.Take("first", 0, 10)
			p.EndLater(item.Value, errors.New("broken"))
		}
		wait(2 * time.Second)
		p.ready(t, 8)
		begun := time.Now()
		p.Close()
		if took := time.Since(begun); took < 60*time.Second || took > 90*time.Second {
			t.Errorf("ten items, four at a time, took %v", took)
		}
	})
}

func TestCloseInterruptsChecks(t *testing.T) {
	inBubble(t, spec.PoolConfig{Min: 8, WarmUp: 8}, func(t *testing.T, w *workshop, p *Pool[int]) {
		wait(time.Second)
		w.set(func() { w.hangs = true })
		wait(time.Minute)
		begun := time.Now()
		p.Close()
		if took := time.Since(begun); took > time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// Items that were made together do not end together.
func TestItemsGrowOldOneAfterTheOther(t *testing.T) {
	inBubble(t, spec.PoolConfig{Min: 30, WarmUp: 30, MaxAge: spec.Duration(5 * time.Minute)}, func(t *testing.T, w *workshop, p *Pool[int]) {
		wait(2 * time.Second)
		for range 600 {
			wait(time.Second)
			if n := p.Counts(nil).Ready; n < 20 {
				t.Errorf("only %d of 30 are ready", n)
			}
		}
		if len(w.ended) < 30 {
			t.Errorf("only %d have ended", len(w.ended))
		}
	})
}

func TestNoneAreMadeWithoutRoom(t *testing.T) {
	inBubble(t, spec.PoolConfig{Min: 3, WarmUp: 3}, func(t *testing.T, w *workshop, p *Pool[int]) {
		wait(time.Second)
		w.set(func() { w.room = errors.New("short of memory") })
		w.mustTake(t, p, "first", 0, true)
		wait(10 * time.Second)
		p.ready(t, 2)
		if n := p.Counts(nil); n.LastError != "short of memory" {
			t.Errorf("%+v", n)
		}
		w.set(func() { w.room = nil })
		wait(time.Minute)
		p.ready(t, 3)
	})
}

// An item that cannot be ended is counted. An item that is given back is taken again.
func TestItemsGivenBack(t *testing.T) {
	inBubble(t, spec.PoolConfig{Min: 1, WarmUp: 1}, func(t *testing.T, w *workshop, p *Pool[int]) {
		wait(time.Second)
		one, _ := w.take(p, "first", 0, 50)
		p.Return("first", one)
		if again, ok := w.take(p, "first", 0, 50); !ok || again != one {
			t.Errorf("took %v, want %v", again, one)
		}
		w.set(func() {
			w.fails = errors.New("busy")
			delete(w.taken, one.Value)
		})
		p.End(one.Value)
		p.Return("forgotten", Item[int]{Value: 99})
		if n := p.Counts(nil); n.Failed != 2 || n.LastError != "end one: busy" && n.LastError != "make one: busy" || len(w.ended) != 2 {
			t.Errorf("%+v, ended %v", n, w.ended)
		}
		w.set(func() { w.fails = nil })
	})
}

// Each owner has its turn: a user who asks for one kind after the other holds up no other owner.
func TestOwnersTakeTurns(t *testing.T) {
	inBubble(t, spec.PoolConfig{Min: 2, WarmUp: 2, Max: 8}, func(t *testing.T, w *workshop, p *Pool[int]) {
		w.set(func() { w.takes = 100 * time.Millisecond })
		wait(time.Second)
		hits := 0
		for n := range 100 {
			if n%5 == 0 {
				if _, ok := w.take(p, "first", 0, 8); ok {
					hits++
				}
			}
			done := func() {}
			if _, ok := w.take(p, strconv.Itoa(n), 1000, 2); !ok {
				done = p.Elsewhere()
			}
			wait(150 * time.Millisecond)
			done()
		}
		if hits < 15 {
			t.Errorf("the other owner had %d hits of 20", hits)
		}
	})
}

// A full pool has room for another kind of an owner by one of the owner's own kinds.
func TestAnOwnerGivesUpItsOwn(t *testing.T) {
	inBubble(t, spec.PoolConfig{Min: 2, WarmUp: 4, Max: 6}, func(t *testing.T, w *workshop, p *Pool[int]) {
		wait(time.Second)
		const user = 1000
		for range 2 {
			w.mustTake(t, p, "user", user, false)
		}
		wait(time.Second)
		w.mustTake(t, p, "second", 0, false)
		w.mustTake(t, p, "third", 0, false)
		wait(time.Second)
		owner := uint32(user)
		if n := p.Counts(&owner).Ready; n != 2 {
			t.Errorf("the user has %d items, want 2", n)
		}
	})
}

// No item is made on the last processor while others make theirs, but for one now and then.
func TestOthersGoFirst(t *testing.T) {
	inBubble(t, spec.PoolConfig{Min: 20, WarmUp: 20}, func(t *testing.T, w *workshop, p *Pool[int]) {
		wait(time.Second)
		var others []func()
		for range runtime.GOMAXPROCS(0) {
			others = append(others, p.Elsewhere())
		}
		for range 20 {
			w.mustTake(t, p, "first", 0, true)
		}
		wait(time.Second)
		if n := p.Counts(nil).Ready; n < 1 || n > 5 {
			t.Errorf("%d were made beside others in a second", n)
		}
		for _, done := range others {
			done()
		}
		wait(time.Second)
		p.ready(t, 20)
	})
}

// An item ends for one that is made elsewhere. It is of the kind that nobody has asked for the longest.
func TestItemsYield(t *testing.T) {
	inBubble(t, spec.PoolConfig{Min: 1, WarmUp: 1, Max: 2}, func(t *testing.T, w *workshop, p *Pool[int]) {
		wait(time.Second)
		w.mustTake(t, p, "other", 0, false)
		wait(time.Second)
		w.set(func() { w.room = errors.New("no room") })
		if !p.Yield() || len(w.ended) != 1 || w.ended[0] != 1 {
			t.Errorf("ended %v", w.ended)
		}
		w.mustTake(t, p, "other", 0, true)
		if p.Yield() {
			t.Error("an empty pool has an item")
		}
	})
}

// A kind that is dropped has no items any more, also none that was being made, until the next request.
func TestADroppedKindEnds(t *testing.T) {
	inBubble(t, spec.PoolConfig{Min: 1, WarmUp: 1}, func(t *testing.T, w *workshop, p *Pool[int]) {
		wait(time.Second)
		w.mustTake(t, p, "other", 0, false)
		wait(time.Second)
		p.ready(t, 2)
		p.Drop("other")
		if len(w.ended) != 1 || w.ended[0] != 2 {
			t.Errorf("ended %v", w.ended)
		}
		p.ready(t, 1)
		p.Drop("unknown")

		w.set(func() { w.takes = time.Minute })
		w.mustTake(t, p, "other", 0, false)
		wait(time.Second)
		if n := p.Counts(nil).Making; n != 1 {
			t.Errorf("%d are being made", n)
		}
		p.Drop("other")
		wait(2 * time.Minute)
		p.ready(t, 1)
		if kinds := p.Kinds(); len(kinds) != 1 || kinds[0] != "first" {
			t.Errorf("kinds: %q", kinds)
		}
		w.set(func() { w.takes = 0 })
		w.mustTake(t, p, "other", 0, false)
		wait(time.Second)
		p.ready(t, 2)
	})
}

func TestASmallerPoolEndsItems(t *testing.T) {
	inBubble(t, spec.PoolConfig{WarmUp: 20}, func(t *testing.T, _ *workshop, p *Pool[int]) {
		wait(time.Second)
		p.ready(t, 20)
		c := p.Config()
		c.Max = 6
		p.Resize(c)
		wait(time.Second)
		p.ready(t, 6)
		c.Max, c.Min = 30, 25
		p.Resize(c)
		wait(2 * time.Second)
		p.ready(t, 25)
	})
}

// A smaller pool has room for other kinds.
func TestASmallerPoolWantsLess(t *testing.T) {
	inBubble(t, spec.PoolConfig{Min: 1, WarmUp: 20}, func(t *testing.T, w *workshop, p *Pool[int]) {
		wait(time.Second)
		c := p.Config()
		c.Max = 5
		p.Resize(c)
		wait(time.Second)
		w.mustTake(t, p, "other", 0, false)
		wait(time.Second)
		w.mustTake(t, p, "other", 0, true)
	})
}

// The pool is closed while it makes items: none is left.
func TestCloseDuringAMake(t *testing.T) {
	inBubble(t, spec.PoolConfig{}, func(t *testing.T, w *workshop, p *Pool[int]) {
		wait(15 * time.Millisecond)
		p.Close()
		if w.made == 0 || len(w.ended) != w.made {
			t.Errorf("made %d, ended %v", w.made, w.ended)
		}
		w.mustTake(t, p, "first", 0, false)
		wait(time.Hour)
		if len(w.ended) != w.made {
			t.Errorf("made %d, ended %v", w.made, w.ended)
		}
	})
}

// Each time of the pool has a reading of the monotonic clock: a jump of the host's clock changes no age.
func TestTimesAreMonotonic(t *testing.T) {
	c, err := spec.PoolConfig{Min: 1, WarmUp: 1, Max: 1}.Complete()
	if err != nil {
		t.Fatal(err)
	}
	w := newWorkshop()
	p := Start(c, "first", w.maker())
	testhost.Eventually(t, "an item", func() bool { return p.Counts(nil).Ready == 1 })
	one, _ := p.Take("first", 0, 1)
	p.Return("first", one)
	p.mu.Lock()
	k := p.kinds["first"]
	k.failed.begin(time.Now())
	times := map[string]time.Time{"failed": k.failed.until, "asked": k.asked, "made": k.ready[0].made, "checked": k.ready[0].checked}
	p.mu.Unlock()
	for name, at := range times {
		if !strings.Contains(at.String(), " m=") {
			t.Errorf("%s has only the time of the wall clock", name)
		}
	}
	p.Close()
}
