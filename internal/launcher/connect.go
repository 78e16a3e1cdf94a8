package launcher

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/networks"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

func (l *Launcher) networks() networks.Networks { return networks.Networks{Roots: l.Roots} }

// inherit raises the sensitivity of a sandbox that is being made to that of the snapshot with
// which the sandbox begins, and of an earlier sandbox of the name.
func (m *creation) inherit() error {
	asked := m.Request.Config
	level, err := m.launcher.networks().Level(m.ID, m.From.UID)
	if err != nil {
		return err
	}
	raised := asked.Raised(level)
	if m.Request.From != "" {
		s, err := m.launcher.layers.ReadSnapshot(m.Request.From, m.From.UID)
		if err != nil {
			return err
		}
		raised = raised.Raised(s.Config.Sensitivity)
	}
	if raised.Network != asked.Network {
		m.Notes = append(m.Notes, fmt.Sprintf("the sandbox has the network %s, not %s, because its sensitivity is %s",
			raised.Network, asked.Network, raised.Sensitivity))
	}
	if asked.Observe && !raised.Observe && raised.Network == spec.NetworkProxied {
		m.Notes = append(m.Notes, fmt.Sprintf("the sandbox is not observed, because its sensitivity is %s; grant names with --allow", raised.Sensitivity))
	}
	if len(asked.Publish) > 0 && len(raised.Publish) == 0 {
		m.Notes = append(m.Notes, fmt.Sprintf("the sandbox publishes no ports, because its sensitivity is %s", raised.Sensitivity))
	}
	m.Request.Config = raised
	return nil
}

// ChangeNetwork changes the network of a sandbox that is up, raises its sensitivity, or both: see
// [networks.Networks.Change].
//
// Errors: *[fault.ConfigError], and the errors of Pause.
func (s *Sandbox) ChangeNetwork(ctx context.Context, want protocol.NetworkRequest) (change spec.NetworkChange, err error) {
	err = s.withLock(ctx, func() (err error) {
		change, err = s.launcher.networks().Change(ctx, s.session.Sandbox, want)
		return err
	})
	return change, err
}

// NetworkDecider opens the channel of the one that decides about the sandbox's connections: see
// [networks.Networks.Decider].
func (s *Sandbox) NetworkDecider(ctx context.Context) (*os.File, error) {
	if err := s.renew(ctx); err != nil {
		return nil, err
	}
	channel, err := s.launcher.networks().Decider(ctx, s.session.ID)
	if err == nil && !s.session.Present() { // another sandbox can have had the name already
		err = errors.Join(&fault.SandboxError{ID: s.session.ID, Err: fault.ErrNotFound}, channel.Close())
	}
	if err != nil {
		return nil, err
	}
	return channel, nil
}

// NetworkEvents are the kept decisions of the proxied network about the sandbox: see [networks.Networks.Events].
func (s *Sandbox) NetworkEvents(ctx context.Context, follow bool) iter.Seq2[spec.NetworkEvent, error] {
	return s.launcher.networks().Events(ctx, s.session.ID, follow)
}
