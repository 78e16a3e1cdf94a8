package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A trunk is one connection of a client. The client opens calls on it.
type trunk struct {
	server  *Server
	channel *channel.Conn
	peer    *peer
	groups  []uint32 // groups of the process that connected

	// ctx is cancelled at the connection's end, and ends all its calls.
	ctx    context.Context
	cancel context.CancelFunc
	calls  sync.WaitGroup

	// mu guards the fields below.
	mu sync.Mutex
	// tied has the sandboxes that end with the connection.
	tied map[string]spec.Info
}

func newTrunk(s *Server, channel *channel.Conn, p *peer, groups []uint32) *trunk {
	t := &trunk{server: s, channel: channel, peer: p, groups: groups, tied: map[string]spec.Info{}}
	t.ctx, t.cancel = context.WithCancel(s.ctx)
	return t
}

// helloTime bounds how long a client may take to identify itself.
const helloTime = 10 * time.Second

// serve takes calls until the connection ends, and then ends these calls.
func (t *trunk) serve() {
	func() {
		defer func() {
			if p := recover(); p != nil {
				t.server.log.Error("a connection has panicked", "uid", t.peer.uid, "panic", p, "stack", string(debug.Stack()))
			}
		}()
		if err := t.listen(); err != nil && t.ctx.Err() == nil {
			t.log().Warn("a client's connection is given up", "error", err)
		}
	}()
	t.cancel()
	t.channel.Close()
	t.channel.Discard()
	t.calls.Wait()
	t.removeTied()
}

// log logs actions of the client.
func (t *trunk) log() userLog { return t.server.clients.forUser(t.peer.uid) }

// listen takes calls. It returns nil at the connection's end.
func (t *trunk) listen() error {
	ctx, cancel := context.WithTimeout(t.ctx, helloTime)
	defer cancel()
	if err := t.channel.Send(ctx, protocol.Hello{Protocol: protocol.Protocol}.Encode()); err != nil {
		return nil // the client is gone already
	}
	body, files, err := t.channel.Receive(ctx, protocol.MaxHello)
	descriptor.Close(files...)
	if err != nil {
		return unlessEnd(err)
	}
	var hello protocol.Hello
	if err := json.Unmarshal(body, &hello); err != nil {
		return fmt.Errorf("the other end is no client: %w", err)
	}
	if hello.Protocol != protocol.Protocol {
		return fmt.Errorf("the client speaks protocol %d, not %d", hello.Protocol, protocol.Protocol) // the client has read our version
	}
	for {
		_, files, err := t.channel.Receive(t.ctx, 0)
		var frame *channel.FrameError
		switch {
		case errors.As(err, &frame) && frame.Lost:
			// The client sees the end of its call.
			t.log().Error("a call is lost", "error", err)
		case err != nil:
			return unlessEnd(err)
		case len(files) != 1:
			descriptor.Close(files...)
			return fmt.Errorf("a call with %d descriptors", len(files))
		default:
			t.open(files[0])
		}
	}
}

// unlessEnd returns the error if it is a broken frame, and nil for the end of the connection.
func unlessEnd(err error) error {
	if _, ok := errors.AsType[*channel.FrameError](err); ok {
		return err
	}
	return nil
}

// open begins a call, on a socket that the client has sent.
func (t *trunk) open(socket *os.File) {
	channel, err := channel.OfFile(socket, channel.MaxFiles)
	if err != nil {
		t.log().Warn("a call's socket", "error", err)
		return
	}
	c := &call{trunk: t, channel: channel}
	if err := c.enter(); err != nil {
		c.refuse(err)
		return
	}
	t.calls.Go(c.serve)
}

// tie notes a sandbox for removal at the connection's end. The call that made an earlier sandbox with the name, which
// another client has removed, can come last: then the note of the later one stays.
func (t *trunk) tie(i spec.Info) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.tied[i.ID].Created.After(i.Created) {
		t.tied[i.ID] = i
	}
}

// tiedAs is the note of a sandbox. It is empty if the sandbox is not tied.
func (t *trunk) tiedAs(id string) spec.Info {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.tied[id]
}

// untie forgets a sandbox, but no later one with its name.
func (t *trunk) untie(was spec.Info) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.tied[was.ID].Created.Equal(was.Created) {
		delete(t.tied, was.ID)
	}
}

// removeTied removes the sandboxes that end with the connection. Call it after the end of all
// calls: then nobody changes t.tied any more.
func (t *trunk) removeTied() {
	var removing sync.WaitGroup
	for _, i := range t.tied {
		removing.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), removeTime)
			defer cancel()
			if err := t.server.abandon(ctx, i, t.peer); err != nil {
				t.log().Error("remove a sandbox whose client has gone", "id", i.ID, "error", err)
			}
		})
	}
	removing.Wait()
}
