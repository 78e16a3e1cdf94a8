package launcher

import (
	"context"
	"fmt"
	"sync"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/networks"
	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

func (l *Launcher) networks() networks.Networks { return networks.Networks{Roots: l.Roots} }

// connect starts to connect the sandbox with the outside, if the configuration asks for that. A
// goroutine does so while the launcher does other steps: the kernel takes some milliseconds for a
// link. The caller must call wait before the sandbox is up, and before it is removed after an error.
func (m *making) connect() (wait func() error) {
	names, r := m.names, m.record
	attached := sync.OnceValue(func() error { return m.launcher.networks().Attach(m.network, names, r) })
	go func() { _ = attached() }() // the caller gets the error
	return attached
}

// inherit raises the sensitivity of a sandbox that is being made to that of the snapshot with
// which the sandbox begins, and of an earlier sandbox of the name.
func (m *making) inherit() error {
	asked := m.request.Config
	level, err := m.launcher.networks().Level(m.id)
	if err != nil {
		return err
	}
	raised := asked.Raised(level.Sensitivity)
	if m.request.From != "" {
		s, err := m.launcher.layers.ReadSnapshot(m.request.From, m.from.UID)
		if err != nil {
			return err
		}
		raised = raised.Raised(s.Config.Sensitivity)
	}
	if raised.Network != asked.Network {
		m.notes = append(m.notes, fmt.Sprintf("the sandbox has the network %s in place of %s: its files have the sensitivity %s",
			raised.Network, asked.Network, raised.Sensitivity))
	}
	m.request.Config = raised
	return nil
}

// ChangeNetwork changes the network of a sandbox that is up, raises its sensitivity, or both: see
// [networks.Networks.Change].
//
// Errors: *[launch.ConfigError], and the errors of Pause.
func (s *Sandbox) ChangeNetwork(ctx context.Context, want launch.NetworkRequest) (change spec.NetworkChange, err error) {
	err = s.alone(ctx, func() (err error) {
		change, err = s.launcher.networks().Change(s.session.Sandbox, want)
		return err
	})
	return change, err
}

// forgetLevel forgets the level of a name without a sandbox, if is returns true for a sandbox of
// the user that reached the level.
func (l *Launcher) forgetLevel(id string, is func(record.Record, error) bool) error {
	level, err := l.networks().Level(id)
	if !is(record.Record{UID: level.UID}, err) {
		return nil
	}
	return l.networks().ForgetLevel(id)
}
