package launcher

import (
	"context"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Stats are the present use of the sandbox, and the most use, with PID 1.
//
// Errors: [launch.ErrNotFound], [launch.ErrNotRunning].
func (s *Sandbox) Stats(ctx context.Context) (all spec.Stats, err error) {
	group := s.session.Group
	err = s.observe(ctx, func() error {
		stats, err := group.Stats()
		if err != nil {
			return err
		}
		events, err := group.Events()
		if err != nil {
			return err
		}
		all = spec.Stats{
			CPU: stats.CPU, Memory: stats.Memory, MemoryPeak: stats.MemoryPeak,
			Pids: stats.Pids, PidsPeak: stats.PidsPeak, IORead: stats.IORead, IOWritten: stats.IOWritten,
			OOMKills: events.OOMKills, ForksRefused: events.PidsLimitHits,
		}
		return nil
	})
	if err != nil {
		return spec.Stats{}, err
	}
	return all, nil
}

// observe reads something of the sandbox by its name. It is an error if the sandbox was
// gone at the end: the values may then be those of a later sandbox with the same name. A
// removal takes the group first and the record last, so one look afterwards suffices.
func (s *Sandbox) observe(ctx context.Context, read func() error) error {
	err := read()
	if !s.session.Up() || !s.session.Present() {
		return s.session.Why(ctx, &launch.SandboxError{ID: s.session.ID, Err: launch.ErrNotRunning})
	}
	return err
}
