package server

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
	"golang.org/x/sync/semaphore"
)

// A peer is a user of the launcher, with all connections of the user.
type peer struct {
	*Rule

	gates
	// shared has the descriptors that all users may still have.
	shared *semaphore.Weighted

	// mu guards the fields below.
	mu sync.Mutex
	// calls and descriptors are in use now.
	calls, descriptors int
	// making counts the creates under way by name; a create without a name counts under "".
	// owned has the known sandboxes of the user. It is nil until the first countOwned.
	making map[string]int
	owned  map[string]bool
	// fresh has the sandboxes that were made since the last countOwned began.
	fresh map[string]bool
	// counting is held during countOwned.
	counting *semaphore.Weighted
}

func newPeer(r *Rule, shared *semaphore.Weighted) *peer {
	return &peer{Rule: r, shared: shared, gates: newGates(r), making: map[string]int{}, fresh: map[string]bool{}, counting: semaphore.NewWeighted(1)}
}

// takeCall counts a call.
func (p *peer) takeCall() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.calls >= p.Calls {
		return refused("more than %d calls at a time", p.Calls)
	}
	p.calls++
	return nil
}

func (p *peer) leaveCall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls--
}

// takeDescriptors counts descriptors that the launcher holds for the peer.
func (p *peer) takeDescriptors(n int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.descriptors+n > p.Descriptors {
		return refused("more than %d descriptors at a time", p.Descriptors)
	}
	if !p.all && !p.shared.TryAcquire(int64(n)) {
		return refused("more than %d descriptors of all users at a time; try again later", maxDescriptors)
	}
	p.descriptors += n
	return nil
}

func (p *peer) leaveDescriptors(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.descriptors -= n
	if !p.all {
		p.shared.Release(int64(n))
	}
}

// maxDescriptors bounds the descriptors of all users but root. The close of a socket with
// SO_LINGER holds a thread as long as its sender wants (socket(7)), and a Go program ends at
// 10,000 threads (runtime/debug.SetMaxThreads).
const maxDescriptors = 8192

// releaseTime is how long a create waits for the files of removed sandboxes, if only these files
// take the room.
const releaseTime = 2 * time.Second

// takeSandbox counts a sandbox that is about to be made or reused: a sandbox that exists now may be
// gone when the create begins. A removed sandbox counts as long as the client holds its files.
func (p *peer) takeSandbox(ctx context.Context, core Core, name string) error {
	if p.haveRoom(name, core.Retired(p.uid)) {
		return nil
	}
	// Other processes may have removed sandboxes of the peer.
	if err := p.countOwned(ctx, core); err != nil {
		return err
	}
	return p.awaitRoom(ctx, core, name)
}

// countOwned lists the sandboxes of the peer. The list may lack sandboxes that are made meanwhile,
// so countOwned adds those in fresh.
func (p *peer) countOwned(ctx context.Context, core Core) error {
	if err := p.counting.Acquire(ctx, 1); err != nil {
		return err
	}
	defer p.counting.Release(1)
	if err := p.reads.Acquire(ctx, 1); err != nil {
		return err
	}
	defer p.reads.Release(1)
	p.mu.Lock()
	clear(p.fresh)
	p.mu.Unlock()
	all, err := core.List(ctx, func(owner uint32) bool { return owner == p.uid })
	if err != nil {
		return err
	}
	owned := map[string]bool{}
	for _, i := range all {
		owned[i.ID] = true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.Copy(owned, p.fresh)
	p.owned = owned
	return nil
}

// awaitRoom waits for a place, as long as files of removed sandboxes occupy one.
func (p *peer) awaitRoom(ctx context.Context, core Core, name string) error {
	for end := time.Now().Add(releaseTime); ; {
		held := core.Retired(p.uid)
		switch {
		case p.haveRoom(name, held):
			return nil
		case held == 0:
			return refused("more than %d sandboxes; remove one", p.Sandboxes)
		case time.Now().After(end):
			return refused("more than %d sandboxes, with %d removed sandboxes whose files a client still has open; close these files, or remove a sandbox", p.Sandboxes, held)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// haveRoom takes a place if one is free; held removed sandboxes occupy places, too. One name takes
// one place, also if it has several creates or exists already. A sandbox that exists can be replaced while its files are
// held. So it counts, too, as long as the files of any removed sandbox are held.
func (p *peer) haveRoom(name string, held int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.owned == nil {
		return false
	}
	places := p.placesLocked() + held
	has := name != "" && (p.owned[name] || p.making[name] > 0)
	if !has {
		places++
	}
	if places > p.Sandboxes && (!has || held > 0) {
		return false
	}
	p.making[name]++
	return true
}

func (p *peer) placesLocked() int {
	places := len(p.owned) + p.making[""]
	for name := range p.making {
		if name != "" && !p.owned[name] {
			places++
		}
	}
	return places
}

// endCreate ends a create that takeSandbox has counted. After success it counts the new sandbox id. Root
// takes no places.
func (p *peer) endCreate(name, id string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all {
		return
	}
	if p.making[name]--; p.making[name] == 0 {
		delete(p.making, name)
	}
	if err == nil {
		p.owned[id], p.fresh[id] = true, true
	}
}

// removed uncounts a sandbox.
func (p *peer) removed(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.owned, id)
	delete(p.fresh, id)
}

// sees says whether the peer may see a sandbox: a peer sees its own sandboxes, and root sees all.
func (p *peer) sees(i spec.Info) bool { return p.owns(i.Owner) }

func (p *peer) owns(owner uint32) bool { return p.all || owner == p.uid }
