package server

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
)

// A refusal is the error for a client that the server refuses.
type refusal struct {
	uid uint32
	err error
}

func (r *refusal) Error() string { return fmt.Sprintf("uid %d: %v", r.uid, r.err) }
func (r *refusal) Unwrap() error { return r.err }

// refusals close the connections of refused clients. The close of a connection also closes the
// descriptors that the client has sent on it. The close of a socket with SO_LINGER can take any
// time that its sender sets: socket(7). So the loop that accepts connections does not close them.
type refusals struct {
	closing sync.WaitGroup

	// mu guards the fields below.
	mu    sync.Mutex
	ended bool
	// count is the number of closings under way, and waiting the number of connections that wait.
	count, waiting int
	users          map[uint32]*refusedUser
}

// A refusedUser has the refused connections of one user: closing counts the closings under way,
// and waiting has the rest.
type refusedUser struct {
	closing int
	waiting []func()
}

// The bounds of closings under way, and of connections that wait, of all users and of one user.
const (
	maxRefusals               = 64
	maxRefusalsPerUser        = 8
	maxWaitingRefusals        = 1024
	maxWaitingRefusalsPerUser = 64
)

func newRefusals() *refusals {
	return &refusals{users: map[uint32]*refusedUser{}}
}

// refuse tells a client the reason, and closes the connection in the background. If too many
// connections wait, refuse closes the connection itself.
func (r *refusals) refuse(channel *channel.Conn, uid uint32, err error) {
	end := func() {
		tellRefused(channel, err)
		_ = channel.Close() // nobody uses the connection any more
	}
	if !r.enter(uid, end) {
		tellRefused(channel, err)
		descriptor.AtOnce(func() { _ = channel.Close() }) // nobody uses the connection any more
	}
}

// enter arranges that end is called in the background, now or later. It returns false if there is
// no place.
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
		r.closing.Go(func() { r.closeNext(uid, end) })
	case r.waiting < maxWaitingRefusals && len(u.waiting) < maxWaitingRefusalsPerUser:
		r.waiting++
		u.waiting = append(u.waiting, end)
	default:
		return false
	}
	r.users[uid] = u
	return true
}

// closeNext ends a connection, and then the connections that wait.
func (r *refusals) closeNext(uid uint32, end func()) {
	for end != nil {
		end()
		uid, end = r.next(uid)
	}
}

// next ends a closing of a user, and returns the next waiting connection, of any user that has a
// free place. It returns nil if no connection waits.
func (r *refusals) next(uid uint32) (uint32, func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	u := r.users[uid]
	u.closing--
	if u.closing == 0 && len(u.waiting) == 0 {
		delete(r.users, uid)
	}
	for uid, u := range r.users { // in random order
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

// end waits for all closings. Later connections are not closed in the background.
func (r *refusals) end() {
	r.mu.Lock()
	r.ended = true
	r.mu.Unlock()
	r.closing.Wait()
}

// tellRefused tells a client the reason of the refusal, if the client reads.
func tellRefused(channel *channel.Conn, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = channel.Send(ctx, protocol.Hello{Protocol: protocol.Protocol, Refused: err.Error()}.Encode())
}
