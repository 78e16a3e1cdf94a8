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

	// mu guards what follows.
	mu    sync.Mutex
	ended bool
	// count is of the closings under way, users those of each user.
	count int
	users map[uint32]int
}

// How many closings there are at a time, of all users and of one.
const (
	maxRefusals        = 64
	maxRefusalsPerUser = 8
)

func newRefusals() *refusals {
	return &refusals{users: map[uint32]int{}}
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
	go func() {
		defer r.leave(uid)
		end()
	}()
}

// enter takes a place; false says that there is none.
func (r *refusals) enter(uid uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended || r.count >= maxRefusals || r.users[uid] >= maxRefusalsPerUser {
		return false
	}
	r.closing.Add(1)
	r.count++
	r.users[uid]++
	return true
}

// end waits for the closings under way. No more are begun in the background.
func (r *refusals) end() {
	r.mu.Lock()
	r.ended = true
	r.mu.Unlock()
	r.closing.Wait()
}

func (r *refusals) leave(uid uint32) {
	defer r.closing.Done()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count--
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
