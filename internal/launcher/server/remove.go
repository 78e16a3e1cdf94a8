package server

import (
	"context"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// removeTime bounds the removal of a sandbox whose client is gone.
const removeTime = time.Minute

// remove removes a sandbox for its client. A sandbox that could not be removed stays tied.
func (c *call) remove(ctx context.Context, id string) error {
	was := c.tiedAs(id)
	err := c.server.remove(ctx, id, c.peer, c.server.core.Remove)
	if err == nil {
		c.untie(was)
	}
	return err
}

// A removal is Remove or Abandon of a Core.
type removal func(ctx context.Context, id string, may func(owner uint32) bool) error

// remove removes a sandbox. It goes on if the client disconnects.
func (s *Server) remove(ctx context.Context, id string, p *peer, remove removal) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTime)
	defer cancel()
	s.handles.drop(id)
	may := p.owns
	if p.all {
		may = nil
	}
	if err := remove(ctx, id, may); err != nil {
		return err
	}
	p.removed(id)
	s.events.removed(id)
	return nil
}

// abandon removes a sandbox that its client has not kept. A later sandbox with the name stays.
func (s *Server) abandon(ctx context.Context, made spec.Info, p *peer) error {
	looking, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTime)
	defer cancel()
	now, err := s.core.Info(looking, made.ID)
	if err == nil && !now.Created.Equal(made.Created) {
		return nil
	}
	return s.remove(ctx, made.ID, p, s.core.Abandon)
}
