package server

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
)

// A refusal is the error of a client that is not served.
type refusal struct {
	uid uint32
	err error
}

func (r *refusal) Error() string { return fmt.Sprintf("uid %d: %v", r.uid, r.err) }
func (r *refusal) Unwrap() error { return r.err }

// refusals close the connections of clients that are not served. To close one is to close
// the descriptors that were sent on it, and that of a socket with SO_LINGER can take as
// long as its sender likes: socket(7). So the loop that takes connections does not do it.
type refusals struct {
	closing sync.WaitGroup
	// places bounds the closings under way, and perUser those of one user.
	places gate

	// mu guards what follows.
	mu    sync.Mutex
	users map[uint32]int
}

const (
	maxRefusals        = 64
	maxRefusalsPerUser = 8
)

func newRefusals() *refusals {
	return &refusals{places: make(gate, maxRefusals), users: map[uint32]int{}}
}

// refuse tells a client that it is not served, and closes the connection in the
// background. A user with too many of these waits for itself, and others with it.
func (r *refusals) refuse(channel *launch.Channel, uid uint32, err error) {
	end := func() {
		tellRefused(channel, err)
		_ = channel.Close() // nothing more is wanted of it
	}
	if !r.enter(uid) {
		end()
		return
	}
	r.closing.Go(func() {
		defer r.leave(uid)
		end()
	})
}

// enter takes a place; false says that there is none.
func (r *refusals) enter(uid uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.users[uid] >= maxRefusalsPerUser {
		return false
	}
	select {
	case r.places <- struct{}{}:
		r.users[uid]++
		return true
	default:
		return false
	}
}

func (r *refusals) leave(uid uint32) {
	r.places.leave()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.users[uid]--; r.users[uid] == 0 {
		delete(r.users, uid)
	}
}

// tellRefused tells a client that it is not served, if it listens.
func tellRefused(channel *launch.Channel, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = channel.Send(ctx, launch.Hello{Protocol: launch.Protocol, Refused: err.Error()}.Encode())
}
