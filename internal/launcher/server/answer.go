package server

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"

	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
)

// answer sends a frame. It ignores errors, because listen notices a client that is gone.
func (c *call) answer(a *protocol.Answer) {
	if body := c.encode(a); body != nil {
		_ = c.channel.Send(context.Background(), body)
	}
}

// deliver sends a frame that occupies memory or files of the launcher. If the client does not read
// the frame in time, deliver closes the call's socket.
func (c *call) deliver(ctx context.Context, a *protocol.Answer, files ...*os.File) error {
	return c.deliverBody(ctx, c.encode(a), files...)
}

// deliverBody sends nothing if there is no body.
func (c *call) deliverBody(ctx context.Context, body []byte, files ...*os.File) error {
	if body == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, deliverTime)
	defer cancel()
	err := c.channel.Send(ctx, body, files...)
	if err != nil {
		c.channel.Close() // a part of the frame may have been sent
	}
	return err
}

// encode returns the body of an answer's frame, or nil after an error.
func (c *call) encode(a *protocol.Answer) []byte {
	body, err := json.Marshal(a)
	if err != nil {
		c.log().Error("encode an answer", "op", c.request.Op, "error", err)
		return nil
	}
	if len(body) > channel.MaxFrame {
		body, _ = json.Marshal(&protocol.Answer{Error: fault.ToWire(
			fmt.Errorf("%s: the answer has %d bytes: %w", c.request.Op, len(body), fault.ErrUnavailable))})
	}
	return body
}

// answerFrom makes an answer with records of sandboxes and sends it. Only a few such answers are in
// memory at a time. An answer counts until it is sent, or until its size is known to be small.
func (c *call) answerFrom(ctx context.Context, f func() (*protocol.Answer, error)) error {
	if err := c.peer.answers.Acquire(ctx, 1); err != nil {
		return err
	}
	release := sync.OnceFunc(func() { c.peer.answers.Release(1) })
	defer release()
	a, err := f()
	if err != nil {
		return err
	}
	body := c.encode(a)
	if len(body) <= smallAnswer {
		release()
	}
	return c.deliverBody(ctx, body)
}
