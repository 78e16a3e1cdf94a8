package launcher

import (
	"context"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
)

// Stats are what the sandbox uses, and has used, PID 1 included.
//
// Errors: [launch.ErrNotFound], [launch.ErrNotRunning].
func (s *Sandbox) Stats(ctx context.Context) (all launch.Stats, err error) {
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
		all = launch.Stats{
			CPU: stats.CPU, Memory: stats.Memory, MemoryPeak: stats.MemoryPeak,
			Pids: stats.Pids, PidsPeak: stats.PidsPeak, IORead: stats.IORead, IOWritten: stats.IOWritten,
			OOMKills: events.OOMKills, ForksRefused: events.PidsLimitHits,
		}
		return nil
	})
	if err != nil {
		return launch.Stats{}, err
	}
	return all, nil
}

// observe reads something of the sandbox by its name, and is an error if it was
// not there for all of that: what was read may then be another's that has its
// name since. Whoever removes it takes the group first and the record last, so
// that one look, afterwards, tells.
func (s *Sandbox) observe(ctx context.Context, read func() error) error {
	err := read()
	if !s.session.Up() || !s.session.Present() {
		return s.session.Why(ctx, &launch.SandboxError{ID: s.session.ID, Err: launch.ErrNotRunning})
	}
	return err
}
