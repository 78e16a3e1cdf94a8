package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
)

// An operation decodes the request of a call. The function that it returns checks the permission, carries the request
// out and sends the answers.
type operation struct {
	word   string
	decode func(c *call, request []byte) (func(context.Context) error, error)
}

// A permission refuses a request that the rule of the client's user does not allow. It can lower the request to the rule.
type permission[Q any] func(ctx context.Context, c *call, q *Q) error

// A handler carries out a request that is permitted, and sends the answers.
type handler[Q, A any] func(ctx context.Context, to answers[A], q *Q) error

// everyone is the permission of an operation for all users that have a rule. The handler answers with objects of the
// user alone.
func everyone[Q any](context.Context, *call, *Q) error { return nil }

// owner is the permission of an operation for the owner of the sandbox, which onSandbox checks.
func owner[Q any](context.Context, *call, *Q) error { return nil }

// on is an operation with its permission and its handler.
func on[Q, A any](op protocol.Op[Q, A], permit permission[Q], carryOut handler[Q, A]) operation {
	return operation{op.String(), func(c *call, request []byte) (func(context.Context) error, error) {
		q := new(Q)
		if err := decode(request, q); err != nil {
			return nil, err
		}
		return func(ctx context.Context) error {
			if err := permit(ctx, c, q); err != nil {
				return err
			}
			return carryOut(ctx, answers[A]{c}, q)
		}, nil
	}}
}

// onSandbox is on for an operation on a sandbox that the user owns. permit is asked after that.
func onSandbox[Q, A any](op protocol.SandboxOp[Q, A], permit permission[Q], carryOut handler[Q, A]) operation {
	return on(op, func(ctx context.Context, c *call, q *protocol.About[Q]) error {
		if q.Request == nil {
			return errIncomplete
		}
		if err := c.checkVisible(ctx, q.ID); err != nil {
			return err
		}
		return permit(ctx, c, q.Request)
	}, func(ctx context.Context, to answers[A], q *protocol.About[Q]) error {
		return carryOut(ctx, to, q.Request)
	})
}

// errIncomplete refuses a request about a sandbox that has only the id.
var errIncomplete = &fault.ConfigError{Reason: `request: the member "request" is missing`}

// decode reads a request, and refuses members that the request does not have.
func decode(request []byte, to any) error {
	if err := protocol.CheckValues(request, protocol.MaxValues); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(request))
	d.DisallowUnknownFields()
	err := d.Decode(to)
	if err == nil {
		if _, end := d.Token(); errors.Is(end, io.EOF) {
			return nil
		}
		err = errors.New("something follows the JSON")
	}
	return &fault.ConfigError{Reason: "request: " + err.Error()}
}

// begin finds the operation of a request, and decodes the request.
func (c *call) begin(body []byte) (func(context.Context) error, error) {
	word, request, _ := bytes.Cut(body, []byte("\n"))
	o, ok := operations[string(word)]
	if !ok {
		return nil, &fault.ConfigError{Reason: fmt.Sprintf("operation %.64q: this launcher does not know it", word)}
	}
	c.word = o.word
	return o.decode(c, request)
}

// once is the handler of an operation with one answer.
func once[Q, A any](f func(ctx context.Context, c *call, q Q) (A, error)) handler[Q, A] {
	return func(ctx context.Context, to answers[A], q *Q) error {
		a, err := f(ctx, to.call, *q)
		if err == nil {
			to.answer(a)
		}
		return err
	}
}

// inSandbox is once for an operation that needs a handle of the sandbox for a moment. f has the form of a method of
// Sandbox.
func inSandbox[Q, A any](f func(box Sandbox, ctx context.Context, q Q) (A, error)) handler[Q, A] {
	return once(func(ctx context.Context, c *call, q Q) (a A, err error) {
		err = c.withSandbox(ctx, func(box Sandbox) (err error) {
			a, err = f(box, ctx, q)
			return err
		})
		return a, err
	})
}

// does is inSandbox without a request and without an answer. takes is inSandbox without an answer.
func does(f func(Sandbox, context.Context) error) handler[protocol.None, protocol.None] {
	return inSandbox(func(box Sandbox, ctx context.Context, _ protocol.None) (a protocol.None, err error) {
		return a, f(box, ctx)
	})
}

func takes[Q any](f func(Sandbox, context.Context, Q) error) handler[Q, protocol.None] {
	return inSandbox(func(box Sandbox, ctx context.Context, q Q) (a protocol.None, err error) { return a, f(box, ctx, q) })
}

// inFiles is takes for a sandbox that may have stopped.
func inFiles[Q any](f func(Sandbox, context.Context, Q) error) handler[Q, protocol.None] {
	return once(func(ctx context.Context, c *call, q Q) (a protocol.None, err error) {
		return a, c.withFiles(ctx, func(box Sandbox) error { return f(box, ctx, q) })
	})
}

// opens is the handler of an operation that answers with a file.
func opens[Q any](f func(Sandbox, context.Context, Q) (*os.File, error)) handler[Q, protocol.None] {
	return func(ctx context.Context, to answers[protocol.None], q *Q) error {
		var file *os.File
		err := to.withSandbox(ctx, func(box Sandbox) (err error) {
			file, err = f(box, ctx, *q)
			return err
		})
		if err != nil {
			return err
		}
		defer file.Close()
		return to.deliver(ctx, protocol.None{}, file)
	}
}
