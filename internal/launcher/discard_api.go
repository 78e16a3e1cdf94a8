package launcher

import "context"

// Discard has the sandbox's overlays show the host's directories again, or what a
// fork has begun with: what was written to them is thrown away.
//
// Errors: [launch.ErrBusy] where something in the sandbox has files open there or its
// directory, and those of Pause.
func (s *Sandbox) Discard(ctx context.Context) error {
	return s.alone(ctx, func() error { return s.session.Overlay.Discard(ctx) })
}
