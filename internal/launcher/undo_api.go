package launcher

import "context"

// Undo takes back what the last n transactions that joined have changed, the newest
// first. What was changed by others since is a conflict: that transaction and those
// before it stay.
//
// Errors: *[launch.ConfigError] where there are not so many, and those of Pause.
func (s *Sandbox) Undo(ctx context.Context, n int) error { return s.session.Overlay.Undo(ctx, n) }
