package server

import (
	"context"
	"sync"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// events send subscribers the changes of sandboxes. Subscribers get changes by this server at once.
// While there is a subscriber, events also polls for changes by other processes and by the kernel.
type events struct {
	handles *handles
	core    Core
	log     userLog

	// joining is held while a subscriber is added or removed. looking is held during look.
	joining, looking sync.Mutex

	// mu guards the fields below.
	mu          sync.Mutex
	subscribers map[*subscriber]bool
	// known has the sandboxes, by id. changes counts the changes by this server.
	known   map[string]*watchedSandbox
	changes int
	// stop ends the goroutine that polls. This goroutine then closes stopped.
	stop    context.CancelFunc
	stopped chan struct{}
}

// watchedSandbox is the last known state of a sandbox.
type watchedSandbox struct {
	spec.Info
	// oomKills is the last count, if counted is true.
	oomKills int64
	counted  bool
	// change is the number of the change by this server that made or removed the sandbox.
	change int
	died   bool
	// gone marks a sandbox that this server has removed, until a later look.
	gone bool
}

// A subscriber gets the events of one peer's sandboxes.
type subscriber struct {
	peer  *peer
	queue chan spec.Event
	lost  int // guarded by events.mu
}

// queueLength is how many events wait for a subscriber.
const queueLength = 256

func newEvents(hs *handles, core Core, log userLog) *events {
	return &events{handles: hs, core: core, log: log, subscribers: map[*subscriber]bool{}, known: map[string]*watchedSandbox{}}
}

// follow sends events to a client until it disconnects.
func follow(ctx context.Context, to answers[*spec.Event], _ *protocol.None) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(to.server.draining, cancel)()
	e := to.server.events
	s, err := e.subscribe(ctx, to.peer)
	if err != nil {
		return err
	}
	defer e.unsubscribe(s)
	to.answer(nil) // from now on the client gets all events
	for {
		select {
		case event := <-s.queue:
			if lost := e.takeLost(s); lost > 0 {
				to.answer(&spec.Event{Type: spec.EventLost, Time: event.Time, Lost: lost})
			}
			to.answer(&event)
		case <-ctx.Done():
			return errEnding
		}
	}
}

func (e *events) takeLost(s *subscriber) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	lost := s.lost
	s.lost = 0
	return lost
}

// subscribe adds a subscriber. When it returns, known has all present sandboxes.
func (e *events) subscribe(ctx context.Context, p *peer) (*subscriber, error) {
	s := &subscriber{peer: p, queue: make(chan spec.Event, queueLength)}
	e.joining.Lock()
	defer e.joining.Unlock()
	e.mu.Lock()
	watching := e.stop != nil
	e.mu.Unlock()
	if !watching {
		if err := e.look(ctx); err != nil {
			return nil, err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.subscribers[s] = true
	if !watching {
		looking, stop := context.WithCancel(context.Background())
		e.stop, e.stopped = stop, make(chan struct{})
		go func(done chan struct{}) {
			defer close(done)
			e.watch(looking)
		}(e.stopped)
	}
	return s, nil
}

func (e *events) unsubscribe(s *subscriber) {
	e.joining.Lock()
	defer e.joining.Unlock()
	e.mu.Lock()
	delete(e.subscribers, s)
	stop := e.stop
	if len(e.subscribers) > 0 {
		stop = nil
	}
	if stop != nil {
		e.stop = nil
	}
	done := e.stopped
	e.mu.Unlock()
	if stop == nil {
		return
	}
	stop()
	<-done
	e.mu.Lock()
	defer e.mu.Unlock()
	e.known = map[string]*watchedSandbox{}
}

// lookTime is the pause between two looks. The pause is longer if a look takes long: it is at least
// lookShare times the time of the look.
const (
	lookTime  = 500 * time.Millisecond
	lookShare = 20
)

func (e *events) watch(ctx context.Context) {
	for wait := lookTime; ; {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		begun := time.Now()
		if err := e.look(ctx); err != nil && ctx.Err() == nil {
			e.log.Error("look after the sandboxes", "error", err)
		}
		e.countAll(ctx)
		wait = max(lookTime, lookShare*time.Since(begun))
	}
}

// look compares the present sandboxes with the known ones.
func (e *events) look(ctx context.Context) error {
	e.looking.Lock()
	defer e.looking.Unlock()
	e.mu.Lock()
	since := e.changes
	e.mu.Unlock()
	all, err := e.core.List(ctx, nil)
	if err != nil && all == nil {
		return err
	}
	there := map[string]bool{}
	for _, i := range all {
		there[i.ID] = true
		e.noteListed(i, since)
	}
	e.mu.Lock()
	for id, w := range e.known {
		if !there[id] && w.change <= since {
			e.removedLocked(id)
		}
	}
	e.mu.Unlock()
	return nil
}

func (e *events) countAll(ctx context.Context) {
	var up []string
	e.mu.Lock()
	for id, w := range e.known {
		if !w.gone && w.State != spec.StateStopped {
			up = append(up, id)
		}
	}
	e.mu.Unlock()
	for _, id := range up {
		e.count(ctx, id)
	}
}

// noteListed notes a sandbox from a list. The list was made after the change with the number since.
func (e *events) noteListed(i spec.Info, since int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	w := e.known[i.ID]
	switch {
	case w != nil && w.change > since:
		return // the list is old
	case w != nil && (w.gone || !w.Created.Equal(i.Created)):
		e.removedLocked(i.ID)
		w = nil
	}
	if w == nil {
		w = e.createdLocked(i)
	}
	w.Info = i
	if i.State == spec.StateStopped && !w.died {
		w.died = true
		e.tellLocked(spec.EventDied, w)
	}
}

// count checks whether the kernel has killed a process of the sandbox for memory.
func (e *events) count(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	var stats spec.Stats
	err := e.handles.withSandbox(ctx, id, func(box Sandbox) (err error) {
		stats, err = box.Stats(ctx)
		return err
	})
	if err != nil {
		return // the sandbox is gone, and the next look notices this
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	w := e.known[id]
	if w == nil || w.gone {
		return
	}
	if w.counted && stats.OOMKills > w.oomKills {
		e.tellLocked(spec.EventOOM, w)
	}
	w.oomKills, w.counted = max(w.oomKills, stats.OOMKills), true
}

// created sends the event of a sandbox that this server has made.
func (e *events) created(i spec.Info) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.subscribers) == 0 {
		return
	}
	e.changes++
	if w := e.known[i.ID]; w != nil {
		if !w.gone && w.Created.Equal(i.Created) {
			return
		}
		e.removedLocked(i.ID)
	}
	e.createdLocked(i).change = e.changes
}

// removed sends the event of a sandbox that this server has removed.
func (e *events) removed(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.subscribers) == 0 {
		return
	}
	e.changes++
	if e.known[id] != nil {
		e.removedLocked(id)
		e.known[id] = &watchedSandbox{gone: true, change: e.changes}
	}
}

// killed checks a sandbox after the kernel has killed a command there for memory.
func (e *events) killed(id string) {
	e.mu.Lock()
	watching := len(e.subscribers) > 0
	e.mu.Unlock()
	if watching {
		e.count(context.Background(), id)
	}
}

func (e *events) createdLocked(i spec.Info) *watchedSandbox {
	// If there is a subscriber, the sandbox is new, and its count starts at zero.
	w := &watchedSandbox{Info: i, counted: len(e.subscribers) > 0}
	e.known[i.ID] = w
	e.tellLocked(spec.EventCreated, w)
	return w
}

func (e *events) removedLocked(id string) {
	w := e.known[id]
	delete(e.known, id)
	if !w.gone {
		e.tellLocked(spec.EventRemoved, w)
	}
}

// tellLocked queues an event for the subscribers that may see the sandbox. It does not wait for
// slow subscribers.
func (e *events) tellLocked(what spec.EventType, w *watchedSandbox) {
	event := spec.Event{Type: what, ID: w.ID, Time: time.Now()}
	for s := range e.subscribers {
		if !s.peer.sees(w.Info) {
			continue
		}
		select {
		case s.queue <- event:
		default:
			s.lost++
		}
	}
}
