package review

import (
	"context"
	"io"
)

// A writerFunc is an io.Writer.
type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// writerUntil writes to w until ctx ends. A write after that fails with the cause.
func writerUntil(ctx context.Context, w io.Writer) io.Writer {
	return writerFunc(func(p []byte) (int, error) {
		if cause := context.Cause(ctx); cause != nil {
			return 0, cause
		}
		return w.Write(p)
	})
}
