// Package poller has a context interrupt a wait for a socket in the runtime's network
// poller, by its deadline, and words the result of the wait. It does not know the sockets'
// protocols.
package poller

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Bind has a context's end interrupt the calls of a deadline, until the returned function
// has been called. That function waits for an interruption under way, and clears the
// deadline.
func Bind(ctx context.Context, deadline func(time.Time) error) (release func()) {
	if ctx.Done() == nil {
		return func() {}
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = deadline(time.Unix(1, 0)) // fails on a closed file: nothing to interrupt
	})
	return func() {
		if !stop() {
			<-interrupted
			_ = deadline(time.Time{})
		}
	}
}

// Outcome joins the results of the poller and the system call: ctx's error, [os.ErrClosed]
// of this end, [io.EOF] of the other, or the system call's.
func Outcome(ctx context.Context, poll, result error) error {
	switch {
	case errors.Is(poll, os.ErrDeadlineExceeded) && ctx.Err() != nil:
		return ctx.Err()
	case poll != nil:
		// All that is left: a RawConn does not say it as os.ErrClosed itself.
		return os.ErrClosed
	case errors.Is(result, unix.EPIPE), errors.Is(result, unix.ECONNRESET):
		return io.EOF
	default:
		return result
	}
}
