package server

import (
	"context"
	"errors"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// removeTime bounds the removal of a sandbox whose client is gone.
const removeTime = time.Minute

// remove removes a sandbox for its client. If the time of the request is not zero, a sandbox that was made at another
// time stays. A sandbox that could not be removed stays tied.
func remove(ctx context.Context, c *call, q protocol.About[time.Time]) (a protocol.None, err error) {
	if q.Request == nil {
		return a, errIncomplete
	}
	id, created := q.ID, *q.Request
	if err := c.checkVisible(ctx, id); err != nil {
		// A user must not learn of other users' sandboxes, also not by a removal.
		if errors.Is(err, fault.ErrNotFound) {
			err = c.forgetLevel(id, created)
		}
		return a, err
	}
	was := c.tiedAs(id)
	removed, err := c.server.remove(ctx, spec.Info{ID: id, Created: created}, c.peer, c.server.core.Remove)
	if isGone := created.IsZero() || created.Equal(was.Created); removed || err == nil && isGone {
		c.untie(was)
	}
	return a, err
}

// forgetLevel ends the level of a name without a sandbox of the peer's. A removal of one sandbox leaves the level: it
// can be that of a later sandbox with the name.
func (c *call) forgetLevel(id string, created time.Time) error {
	if !created.IsZero() {
		return nil
	}
	return c.server.core.ForgetLevel(id, c.peer.uid)
}

// A removal is Remove or Abandon of a Core.
type removal func(ctx context.Context, id string, only Condition) (bool, error)

// remove removes the sandbox with the id and the time of i. It goes on if the client disconnects. It returns
// false if it has removed nothing. Then another call may have made a sandbox with the name, which counts.
func (s *Server) remove(ctx context.Context, i spec.Info, p *peer, remove removal) (bool, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTime)
	defer cancel()
	s.handles.drop(i.ID)
	only := Condition{Owner: p.owns, Created: i.Created}
	if p.all {
		only.Owner = nil
	}
	removed, err := remove(ctx, i.ID, only)
	if err != nil || !removed {
		return false, err
	}
	p.removed(i.ID)
	s.events.removed(i.ID)
	return true, nil
}

// abandon removes a sandbox that its client has not kept. A later sandbox with the name stays.
func (s *Server) abandon(ctx context.Context, made spec.Info, p *peer) error {
	_, err := s.remove(ctx, made, p, s.core.Abandon)
	return err
}
