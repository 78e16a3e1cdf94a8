package server

import (
	"context"
	"fmt"
	"slices"
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

	// mu guards the fields below.
	mu    sync.Mutex
	ended bool
	// count is of the closings under way, waiting of those that wait for a place.
	count, waiting int
	users          map[uint32]*refusedUser
}

// A refusedUser has connections that are closed, or wait for that.
type refusedUser struct {
	closing int
	waiting []func()
}

// How many closings there are at a time, and how many wait, of all users and of one.
const (
	maxRefusals               = 64
	maxRefusalsPerUser        = 8
	maxWaitingRefusals        = 1024
	maxWaitingRefusalsPerUser = 64
)

func newRefusals() *refusals {
	return &refusals{users: map[uint32]*refusedUser{}}
}

// refuse tells a client that it is not served, and closes the connection in the
// background. If the user has too many that wait, this call closes the connection itself,
// and other users wait.
func (r *refusals) refuse(channel *launch.Channel, uid uint32, err error) {
	end := func() {
		tellRefused(channel, err)
		_ = channel.Close() // nothing more is wanted of it
	}
	if !r.enter(uid, end) {
		end()
	}
}

// enter has a connection ended in the background, now or later; false says that there
// is no place for it.
func (r *refusals) enter(uid uint32, end func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return false
	}
	u := r.users[uid]
	if u == nil {
		u = &refusedUser{}
	}
	switch {
	case r.count < maxRefusals && u.closing < maxRefusalsPerUser:
		r.count++
		u.closing++
		r.closing.Go(func() { r.work(uid, end) })
	case r.waiting < maxWaitingRefusals && len(u.waiting) < maxWaitingRefusalsPerUser:
		r.waiting++
		u.waiting = append(u.waiting, end)
	default:
		return false
	}
	r.users[uid] = u
	return true
}

// work ends a connection, and then those that wait.
func (r *refusals) work(uid uint32, end func()) {
	for end != nil {
		end()
		uid, end = r.next(uid)
	}
}

// next gives the place of a user to the next waiting connection, of any user that has a
// place left. Nil: none waits.
func (r *refusals) next(uid uint32) (uint32, func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	u := r.users[uid]
	u.closing--
	if u.closing == 0 && len(u.waiting) == 0 {
		delete(r.users, uid)
	}
	for uid, u := range r.users { // whose turn it is is random
		if len(u.waiting) > 0 && u.closing < maxRefusalsPerUser {
			end := u.waiting[0]
			u.waiting = slices.Delete(u.waiting, 0, 1)
			r.waiting--
			u.closing++
			return uid, end
		}
	}
	r.count--
	return 0, nil
}

// end waits for all closings. No more are begun in the background.
func (r *refusals) end() {
	r.mu.Lock()
	r.ended = true
	r.mu.Unlock()
	r.closing.Wait()
}

// tellRefused tells a client that it is not served, if it listens.
func tellRefused(channel *launch.Channel, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = channel.Send(ctx, launch.Hello{Protocol: launch.Protocol, Refused: err.Error()}.Encode())
}
