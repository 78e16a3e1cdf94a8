package sandbox

import (
	"context"
	"fmt"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
)

// PoolStats are the counts of the pool of the Manager's launcher. Users other than root get the
// counts of their own sandboxes.
//
// Errors: *ConfigError for a launcher without a pool, ErrUnavailable.
func (m *Manager) PoolStats(ctx context.Context) (PoolStats, error) { return m.pool(ctx, nil) }

// ResizePool changes the bounds of the pool of the Manager's launcher. Blanks above the new Max
// end. Only root may do that.
//
// Errors: *ConfigError, joined with a *FieldError for each wrong bound, and also for a launcher without
// a pool; ErrRefused, ErrUnavailable.
func (m *Manager) ResizePool(ctx context.Context, c PoolConfig) (PoolStats, error) {
	if _, err := c.Complete(); err != nil {
		return PoolStats{}, fault.Refusal(err)
	}
	return m.pool(ctx, &c)
}

func (m *Manager) pool(ctx context.Context, c *PoolConfig) (PoolStats, error) {
	p, err := m.chooseProvider(ctx, ProviderIsolated)
	if err != nil {
		return PoolStats{}, err
	}
	launcher, ok := p.(*isolatedProvider)
	if !ok {
		return PoolStats{}, &ConfigError{Reason: fmt.Sprintf("the provider %q of this program has no pool", ProviderIsolated)}
	}
	return askLauncher(ctx, launcher, func(client *protocol.Client) (PoolStats, error) { return protocol.Ask(ctx, client, protocol.OpPool, c) })
}
