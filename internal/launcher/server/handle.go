package server

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
)

// handles are the sandboxes that are open. One that nobody has used for a while
// is let go of.
type handles struct {
	core Core

	// mu guards the fields below.
	mu   sync.Mutex
	open map[string]*handle
}

// A handle is one sandbox that is open, or is being opened.
type handle struct {
	id string
	// ready is closed once box, or err, is there.
	ready chan struct{}
	box   Sandbox
	err   error

	// users counts the users of the handle. handles.mu guards users and the fields below:
	// idle releases the handle, dropped says that it cannot be found any more.
	users   int
	idle    *time.Timer
	dropped bool
}

// keepTime is how long a sandbox stays open that nobody uses.
const keepTime = 5 * time.Second

func newHandles(core Core) *handles { return &handles{core: core, open: map[string]*handle{}} }

// with calls f with the sandbox open.
func (hs *handles) with(ctx context.Context, id string, f func(Sandbox) error) error {
	h, err := hs.hold(ctx, id, f)
	if err != nil {
		return err
	}
	hs.release(h)
	return nil
}

// hold is with, and keeps the sandbox open until release.
//
// f is called once more if the sandbox was open from before and is not there any
// more: another may have its name since.
func (hs *handles) hold(ctx context.Context, id string, f func(Sandbox) error) (*handle, error) {
	for {
		h, fresh, err := hs.acquire(ctx, id)
		if err != nil {
			return nil, err
		}
		err = hs.try(h, f)
		if err == nil {
			return h, nil
		}
		gone := errors.Is(err, launch.ErrNotRunning) || errors.Is(err, launch.ErrNotFound)
		if gone {
			hs.forget(h)
		}
		hs.release(h)
		if fresh || !gone || ctx.Err() != nil {
			return nil, err
		}
	}
}

// try lets go of the handle where f panics.
func (hs *handles) try(h *handle, f func(Sandbox) error) error {
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

// acquire finds or opens a sandbox; fresh says that it was opened now. Of several
// at the same time, one opens it.
func (hs *handles) acquire(ctx context.Context, id string) (h *handle, fresh bool, err error) {
	for {
		h, mine := hs.enter(id)
		if mine {
			return h, true, hs.fill(ctx, h)
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
		// Only if the other one's context has ended there is more to hope for.
		if !errors.Is(h.err, context.Canceled) && !errors.Is(h.err, context.DeadlineExceeded) {
			return nil, false, h.err
		}
	}
}

// enter counts a user of a handle; mine says that it is to be filled.
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

// fill opens the sandbox. On an error, the handle is released.
func (hs *handles) fill(ctx context.Context, h *handle) error {
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

// errPanic is of an Open that did not return.
var errPanic = errors.New("the launcher has a defect; its log says where")

// add takes over a sandbox that was just made.
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
	h.users--
	var unused Sandbox
	switch {
	case h.users > 0:
	case h.dropped:
		unused, h.box = h.box, nil
	case h.idle == nil:
		h.idle = time.AfterFunc(keepTime, func() { hs.expire(h) })
	default:
		h.idle.Reset(keepTime)
	}
	hs.mu.Unlock()
	if unused != nil {
		unused.Release()
	}
}

// expire lets go of a handle that nobody uses.
func (hs *handles) expire(h *handle) {
	hs.mu.Lock()
	unused := h.users == 0
	hs.mu.Unlock()
	if unused {
		hs.forget(h)
	}
}

// forget has nobody find the handle any more; its last user lets go of it.
func (hs *handles) forget(h *handle) {
	hs.mu.Lock()
	if hs.open[h.id] == h {
		delete(hs.open, h.id)
	}
	h.dropped = true
	if h.idle != nil {
		h.idle.Stop()
	}
	var unused Sandbox
	if h.users == 0 {
		unused, h.box = h.box, nil
	}
	hs.mu.Unlock()
	if unused != nil {
		unused.Release()
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

// close lets go of all that nobody uses.
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
