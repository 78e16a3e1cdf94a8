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

// answers sends the answers of a call.
type answers[A any] struct{ *call }

// answer sends a frame. It ignores errors, because listen notices a client that is gone.
func (to answers[A]) answer(a A) {
	if body := to.encode(a); body != nil {
		_ = to.channel.Send(context.Background(), body)
	}
}

// deliver sends a frame that occupies memory or files of the launcher. If the client does not read
// the frame in time, deliver closes the call's socket.
func (to answers[A]) deliver(ctx context.Context, a A, files ...*os.File) error {
	return to.deliverBody(ctx, to.encode(a), files...)
}

// encode returns the body of an answer's frame, or nil after an error.
func (to answers[A]) encode(a A) []byte {
	body, err := json.Marshal(protocol.Answer[A]{Value: a})
	if err != nil {
		to.log().Error("encode an answer", "op", to.word, "error", err)
		return nil
	}
	if len(body) > channel.MaxFrame {
		return encodeError(fmt.Errorf("%s: the answer has %d bytes: %w", to.word, len(body), fault.ErrUnavailable))
	}
	return body
}

// encodeError returns the body of the answer with an error.
func encodeError(err error) []byte {
	body, err := json.Marshal(protocol.Answer[protocol.None]{Error: fault.ToWire(err)})
	if err != nil {
		panic(err) // it has texts and numbers alone
	}
	return body
}

// answerError ends the call with an error. It ignores errors as answer does.
func (c *call) answerError(err error) {
	_ = c.channel.Send(context.Background(), encodeError(err))
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

// answerFrom makes an answer with records of sandboxes and sends it. Only a few such answers are in
// memory at a time. An answer counts until it is sent, or until its size is known to be small.
func (to answers[A]) answerFrom(ctx context.Context, f func() (A, error)) error {
	if err := to.peer.answers.Acquire(ctx, 1); err != nil {
		return err
	}
	release := sync.OnceFunc(func() { to.peer.answers.Release(1) })
	defer release()
	a, err := f()
	if err != nil {
		return err
	}
	body := to.encode(a)
	if len(body) <= smallAnswer {
		release()
	}
	return to.deliverBody(ctx, body)
}

// records is the handler of an operation that answers with records of sandboxes, by answerFrom.
func records[Q, A any](f func(ctx context.Context, c *call, q Q) (A, error)) handler[Q, A] {
	return func(ctx context.Context, to answers[A], q *Q) error {
		return to.answerFrom(ctx, func() (A, error) { return f(ctx, to.call, *q) })
	}
}
