package server

import (
	"context"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// allowPool refuses new bounds of the pool from a user with a rule.
func allowPool(_ context.Context, c *call, bounds **spec.PoolConfig) error {
	if *bounds != nil && !c.peer.all {
		return refused("only root changes the bounds of the pool")
	}
	return nil
}

// pool answers with the counts of the launcher's pool. A user sees the counts of the user's own sandboxes.
func pool(_ context.Context, c *call, bounds *spec.PoolConfig) (spec.PoolStats, error) {
	core := c.server.core
	if bounds != nil {
		if err := core.ResizePool(*bounds); err != nil {
			return spec.PoolStats{}, err
		}
	}
	var user *uint32
	if !c.peer.all {
		user = &c.peer.uid
	}
	return core.PoolStats(user)
}
