package sandboxtest

import (
	"context"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// ChangeNetwork implements [sandbox.NetworkChanger]. A fake has no connections.
func (i *instance) ChangeNetwork(_ context.Context, grant *sandbox.NetworkGrant, level sandbox.Sensitivity) (sandbox.NetworkChange, error) {
	if i.ctx.Err() != nil {
		return sandbox.NetworkChange{}, sandbox.ErrNotFound
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	before := i.info.Config
	next, err := before.Changed(grant, level)
	if err != nil {
		return sandbox.NetworkChange{}, &sandbox.ConfigError{Reason: err.Error()}
	}
	i.info.Config = next
	return spec.NewNetworkChange(before, next, 0), nil
}
