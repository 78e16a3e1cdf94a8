package server

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
)

// handles are the open sandboxes. A handle without a user for a while is closed.
type handles struct {
	core Core

	// mu guards the fields below.
	mu   sync.Mutex
	open map[string]*handle
}

// A handle is one open sandbox, also while it is being opened.
type handle struct {
	id string
	// ready is closed once box or err is set.
	ready chan struct{}
	box   Sandbox
	err   error

	// users counts the users of the handle. handles.mu guards users and the fields below. idle
	// is the timer that closes the handle. dropped says that the handle is no longer in
	// handles.open.
	users   int
	idle    *time.Timer
	dropped bool
}

// keepTime is how long a sandbox without users stays open.
const keepTime = 5 * time.Second

func newHandles(core Core) *handles { return &handles{core: core, open: map[string]*handle{}} }

// withSandbox calls f with the sandbox open.
func (hs *handles) withSandbox(ctx context.Context, id string, f func(Sandbox) error) error {
	h, err := hs.hold(ctx, id, f)
	if err != nil {
		return err
	}
	hs.release(h)
	return nil
}

// hold is withSandbox, and keeps the sandbox open until release.
//
// If the sandbox was already open and is gone, hold opens the name again and calls f once more:
// another sandbox may have the name now.
func (hs *handles) hold(ctx context.Context, id string, f func(Sandbox) error) (*handle, error) {
	for {
		h, fresh, err := hs.acquire(ctx, id)
		if err != nil {
			return nil, err
		}
		err = hs.callHandle(h, f)
		if err == nil {
			return h, nil
		}
		gone := errors.Is(err, fault.ErrNotRunning) || errors.Is(err, fault.ErrNotFound)
		if gone {
			hs.forget(h)
		}
		hs.release(h)
		if fresh || !gone || ctx.Err() != nil {
			return nil, err
		}
	}
}

// callHandle calls f. If f panics, callHandle releases the handle.
func (hs *handles) callHandle(h *handle, f func(Sandbox) error) error {
	returned := false
	defer func() {
		if !returned {
			hs.forget(h)
			hs.release(h)
		}
	}()
	err := f(h.box)
	returned = true
	return err
}

// acquire finds or opens a sandbox. fresh says that this call has opened it. Of several calls at
// the same time, one opens the sandbox and the others wait.
func (hs *handles) acquire(ctx context.Context, id string) (h *handle, fresh bool, err error) {
	for {
		h, mine := hs.enter(id)
		if mine {
			return h, true, hs.openSandbox(ctx, h)
		}
		select {
		case <-h.ready:
		case <-ctx.Done():
			hs.release(h)
			return nil, false, ctx.Err()
		}
		if h.err == nil {
			return h, false, nil
		}
		hs.release(h)
		// Another attempt makes sense only if the context of the call that opened has ended.
		if !errors.Is(h.err, context.Canceled) && !errors.Is(h.err, context.DeadlineExceeded) {
			return nil, false, h.err
		}
	}
}

// enter counts a user of a handle. mine says that the handle is new and the caller must fill it.
func (hs *handles) enter(id string) (h *handle, mine bool) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h = hs.open[id]
	if h == nil {
		h = &handle{id: id, ready: make(chan struct{}), users: 1}
		hs.open[id] = h
		return h, true
	}
	h.users++
	if h.idle != nil {
		h.idle.Stop()
	}
	return h, false
}

// openSandbox opens the sandbox. After an error it releases the handle.
func (hs *handles) openSandbox(ctx context.Context, h *handle) error {
	h.err = errPanic
	defer func() {
		close(h.ready)
		if h.err != nil {
			hs.forget(h)
			hs.release(h)
		}
	}()
	h.box, h.err = hs.core.Open(ctx, h.id)
	return h.err
}

// errPanic is the error of an Open that panicked.
var errPanic = errors.New("the launcher has a defect; see the launcher's log")

// add takes over the handle of a new sandbox.
func (hs *handles) add(box Sandbox) {
	h := &handle{id: box.ID(), ready: make(chan struct{}), box: box, users: 1}
	close(h.ready)
	hs.mu.Lock()
	old := hs.open[h.id]
	hs.open[h.id] = h
	hs.mu.Unlock()
	if old != nil {
		hs.forget(old)
	}
	hs.release(h)
}

// release ends a use of a handle.
func (hs *handles) release(h *handle) {
	hs.mu.Lock()
	defer hs.unlock(h)
	h.users--
	switch {
	case h.users > 0, h.dropped:
	case h.idle == nil:
		h.idle = time.AfterFunc(keepTime, func() { hs.expire(h) })
	default:
		h.idle.Reset(keepTime)
	}
}

// unlock unlocks mu. A dropped handle without users releases its sandbox after that.
func (hs *handles) unlock(h *handle) {
	var unused Sandbox
	if h.dropped && h.users == 0 {
		unused, h.box = h.box, nil
	}
	hs.mu.Unlock()
	if unused != nil {
		unused.Release()
	}
}

// expire forgets a handle without users.
func (hs *handles) expire(h *handle) {
	hs.mu.Lock()
	unused := h.users == 0
	hs.mu.Unlock()
	if unused {
		hs.forget(h)
	}
}

// forget removes the handle from handles.open. The last user releases its sandbox.
func (hs *handles) forget(h *handle) {
	hs.mu.Lock()
	defer hs.unlock(h)
	if hs.open[h.id] == h {
		delete(hs.open, h.id)
	}
	h.dropped = true
	if h.idle != nil {
		h.idle.Stop()
	}
}

// drop forgets the handle of a sandbox, if there is one.
func (hs *handles) drop(id string) {
	hs.mu.Lock()
	h := hs.open[id]
	hs.mu.Unlock()
	if h != nil {
		hs.forget(h)
	}
}

// close drops all handles.
func (hs *handles) close() {
	hs.mu.Lock()
	ids := make([]string, 0, len(hs.open))
	for id := range hs.open {
		ids = append(ids, id)
	}
	hs.mu.Unlock()
	for _, id := range ids {
		hs.drop(id)
	}
}
