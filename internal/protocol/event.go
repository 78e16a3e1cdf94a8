package protocol

import (
	"context"
	"errors"
	"sync"

	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Events follows the events of the client's sandboxes, from now on.
func (c *Client) Events(ctx context.Context) (*Events, error) {
	ch, err := OpEvents.open(ctx, c, None{})
	if err != nil {
		return nil, err
	}
	// The launcher says when it listens: no event is missed after that.
	if _, _, err := OpEvents.receive(ctx, c, ch); err != nil {
		return nil, errors.Join(err, ch.Close())
	}
	return &Events{client: c, channel: ch}, nil
}

// Events are a subscription. Close ends it.
type Events struct {
	client  *Client
	channel *channel.Conn
	mu      sync.Mutex // held by the one in Next
}

// Next waits for the next event. After an error of ctx it may be called again.
func (e *Events) Next(ctx context.Context) (spec.Event, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	event, _, err := OpEvents.receive(ctx, e.client, e.channel)
	if err == nil && event == nil {
		err = errAnswer
	}
	if err != nil {
		return spec.Event{}, err
	}
	return *event, nil
}

// Close ends the subscription and all waits for it. It is safe to call twice.
func (e *Events) Close() error { return e.channel.Close() }
