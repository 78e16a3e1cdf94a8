package server

import "github.com/sandbox-runtime/sandbox-runtime/internal/protocol"

// pool answers with the counts of the launcher's pool. A user sees the counts of the user's own
// sandboxes, and cannot change the pool.
func (c *call) pool() (*protocol.Answer, error) {
	core := c.server.core
	if bounds := c.request.Pool; bounds != nil {
		if !c.peer.all {
			return nil, refused("only root changes the bounds of the pool")
		}
		if err := core.ResizePool(*bounds); err != nil {
			return nil, err
		}
	}
	var user *uint32
	if !c.peer.all {
		user = &c.peer.uid
	}
	stats, err := core.PoolStats(user)
	return &protocol.Answer{Pool: &stats}, err
}
