package channel

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Bind calls setDeadline with a time in the past when ctx ends. The caller must call release
// once after the wait. If ctx has ended by then, release waits for the call of setDeadline,
// and clears the deadline.
func Bind(ctx context.Context, setDeadline func(time.Time) error) (release func()) {
	if ctx.Done() == nil {
		return func() {}
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = setDeadline(time.Unix(1, 0)) // an error means that the file is closed: no call waits
	})
	return func() {
		if !stop() {
			<-interrupted
			_ = setDeadline(time.Time{})
		}
	}
}

// Outcome returns one error for the results of a wait in the poller and of the system call
// after it: ctx's error if the wait was interrupted, [os.ErrClosed] if this end was closed,
// [io.EOF] if the other end was closed, otherwise the error of the system call.
func Outcome(ctx context.Context, poll, result error) error {
	switch {
	case errors.Is(poll, os.ErrDeadlineExceeded) && ctx.Err() != nil:
		return ctx.Err()
	case poll != nil:
		// The file was closed. A RawConn returns another error than os.ErrClosed then.
		return os.ErrClosed
	case errors.Is(result, unix.EPIPE), errors.Is(result, unix.ECONNRESET):
		return io.EOF
	default:
		return result
	}
}
