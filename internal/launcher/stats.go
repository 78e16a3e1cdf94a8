package launcher

import (
	"context"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Stats returns the present and the peak use of resources by the sandbox, with PID 1.
//
// Errors: [fault.ErrNotFound], [fault.ErrNotRunning].
func (s *Sandbox) Stats(ctx context.Context) (all spec.Stats, err error) {
	group := s.session.Group
	err = s.observe(ctx, func() error {
		traffic, err := s.launcher.networks().Traffic(ctx, s.session.ID)
		if err != nil {
			return err
		}
		stats, err := group.Stats()
		if err != nil {
			return err
		}
		events, err := group.Events()
		if err != nil {
			return err
		}
		ended, err := s.session.Refusals()
		if err != nil {
			return err
		}
		all = spec.Stats{
			CPU: stats.CPU, Memory: stats.Memory, MemoryPeak: stats.MemoryPeak,
			Pids: stats.Pids, PidsPeak: stats.PidsPeak, IORead: stats.IORead, IOWritten: stats.IOWritten,
			NetworkReceived: traffic.Received, NetworkSent: traffic.Sent, NetworkCharged: traffic.Charged,
			NetworkRequests: traffic.Requests, NetworkRefused: traffic.Refused,
			OOMKills: events.OOMKills + ended.OOMKills, ForksRefused: events.PidsLimitHits + ended.ForksRefused,
		}
		return nil
	})
	return all, err
}

// observe calls read, which reads values of the sandbox by its name. If the sandbox is gone
// afterwards, observe returns an error: the values may be of a later sandbox with the same name.
// One check afterwards suffices, since a removal ends PID 1 before it gives up the name.
func (s *Sandbox) observe(ctx context.Context, read func() error) error {
	err := read()
	if !s.session.Up() || !s.session.Present() {
		return s.session.Why(ctx, &fault.SandboxError{ID: s.session.ID, Err: fault.ErrNotRunning})
	}
	return err
}
