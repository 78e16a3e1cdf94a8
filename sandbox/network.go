package sandbox

import (
	"context"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
)

// A NetworkChanger changes an Instance's network while it runs, and raises its sensitivity. A nil
// grant leaves the network as far as the level permits it. A level that is empty or below the
// present one changes nothing.
type NetworkChanger interface {
	ChangeNetwork(ctx context.Context, grant *NetworkGrant, level Sensitivity) (NetworkChange, error)
}

// SetNetwork changes the network of the sandbox while it runs. The new network holds before
// SetNetwork returns: connections that the new network does not permit have ended, and their
// readers and writers in the sandbox get the error ECONNABORTED. Processes and files stay. If the
// host's network returns an error, the sandbox has no network. It can have none, too, if ctx ends first.
//
// Errors: *ConfigError, also for a network that the sensitivity of the sandbox does not permit.
func (s *Sandbox) SetNetwork(ctx context.Context, grant NetworkGrant) (NetworkChange, error) {
	return s.changeNetwork(ctx, &grant, "")
}

// RaiseSensitivity raises the sensitivity of the sandbox, and narrows its network to the widest one
// that the new level permits, as SetNetwork does. The level is on disk before the network changes. No
// call lowers the level: a level below the present one changes nothing. Close and the command "down" end
// the level.
func (s *Sandbox) RaiseSensitivity(ctx context.Context, level Sensitivity) (NetworkChange, error) {
	return s.changeNetwork(ctx, nil, level)
}

func (s *Sandbox) changeNetwork(ctx context.Context, grant *NetworkGrant, level Sensitivity) (change NetworkChange, err error) {
	err = do(s, "change of the network", func(n NetworkChanger) (err error) {
		change, err = n.ChangeNetwork(ctx, grant, level)
		return err
	})
	return change, err
}

func (i *isolatedInstance) ChangeNetwork(ctx context.Context, grant *NetworkGrant, level Sensitivity) (NetworkChange, error) {
	return ask(ctx, i.provider, func(c *launch.Client) (NetworkChange, error) {
		return c.ChangeNetwork(ctx, i.info.ID, launch.NetworkRequest{Grant: grant, Sensitivity: level})
	})
}
