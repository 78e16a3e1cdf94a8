package jobs

import (
	"context"
	"errors"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
)

// pauseCheck is the time between two checks for a pause of the sandbox, during a question to
// its PID 1.
const pauseCheck = 200 * time.Millisecond

// UnlessPaused calls ask, which asks the sandbox's PID 1. If the sandbox is paused meanwhile,
// PID 1 neither reads nor answers: then UnlessPaused ends the context of ask and returns a
// [fault.SandboxError] with [fault.ErrPaused]. Each question without another bound needs
// UnlessPaused: also a request waits, for room in the socket.
func (v *Session) UnlessPaused(ctx context.Context, ask func(context.Context) error) error {
	paused := &fault.SandboxError{ID: v.ID, Err: fault.ErrPaused}
	asking, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := runEvery(pauseCheck, func() bool {
		isPaused := v.Paused()
		if isPaused {
			cancel(paused)
		}
		return !isPaused
	})
	defer stop()
	err := ask(asking)
	if err != nil && ctx.Err() == nil && errors.Is(context.Cause(asking), fault.ErrPaused) {
		return paused
	}
	return err
}
