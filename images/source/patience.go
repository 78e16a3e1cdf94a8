package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"
)

// patience has the time limits for servers. Zero values are the defaults; tests use shorter ones.
type patience struct {
	// answer is for the connection, the TLS handshake and the header of an answer, each.
	answer time.Duration
	// stall is the time in which a body must bring stallBytes.
	stall time.Duration
	// first is the pause after the first failure. Each further pause is twice as long.
	first time.Duration
	// longest bounds the pause that a server may ask for.
	longest time.Duration
	// connect bounds the first contact with a registry, including the token.
	connect time.Duration
}

const stallBytes = 16 << 10

// maxTries bounds the tries of one request, the first one included.
const maxTries = 5

// filled fills in the defaults.
func (p patience) filled() patience {
	return patience{
		answer:  cmp.Or(p.answer, 30*time.Second),
		stall:   cmp.Or(p.stall, 30*time.Second),
		first:   cmp.Or(p.first, 500*time.Millisecond),
		longest: cmp.Or(p.longest, time.Minute),
		connect: cmp.Or(p.connect, 5*time.Minute),
	}
}

// pause waits after a failure. The server may ask for a longer pause.
func (p patience) pause(ctx context.Context, tries int, asked time.Duration) error {
	wait := p.first << (tries - 1)
	wait += rand.N(wait/4 + 1) // clients that failed together come back apart
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(max(wait, asked)):
		return nil
	}
}

// temporaryError is a failure that may not happen again.
type temporaryError struct{ error }

func (e *temporaryError) Unwrap() error { return e.error }

// retryStatus says whether the same request may succeed later.
func retryStatus(code int) bool {
	switch code {
	case http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway,
		http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// retryAfter is the pause that an answer asks for, in seconds or as a date (RFC 9110, section 10.2.3).
func retryAfter(header string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseUint(header, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if date, err := http.ParseTime(header); err == nil {
		return max(0, date.Sub(now))
	}
	return 0
}

// retrier repeats requests without a body that failed for a moment.
type retrier struct {
	inner    http.RoundTripper
	patience patience
}

func (r *retrier) RoundTrip(request *http.Request) (*http.Response, error) {
	ctx := request.Context()
	for tries := 1; ; tries++ {
		response, err := r.inner.RoundTrip(request)
		last := tries >= maxTries || request.Body != nil && request.Body != http.NoBody
		if err != nil {
			if last || ctx.Err() != nil || errors.As(err, new(*refusedError)) || !isTemporary(err) {
				return nil, err
			}
			if err := r.patience.pause(ctx, tries, 0); err != nil {
				return nil, err
			}
			continue
		}
		if last || !retryStatus(response.StatusCode) {
			return response, nil
		}
		asked := retryAfter(response.Header.Get("Retry-After"), time.Now())
		if asked > r.patience.longest {
			return response, nil
		}
		_, _ = io.CopyN(io.Discard, response.Body, 64<<10) // for the connection's next use
		response.Body.Close()
		if err := r.patience.pause(ctx, tries, asked); err != nil {
			return nil, err
		}
	}
}

// statusError is the error of an unexpected answer.
func statusError(response *http.Response) error {
	body, err := io.ReadAll(io.LimitReader(response.Body, 4<<10))
	if err != nil {
		body = nil // the status says enough
	}
	err = &answerError{response.StatusCode, fmt.Sprintf("the server answered %s%s", describe(response.StatusCode, body), unknownWays(response))}
	if after := retryAfter(response.Header.Get("Retry-After"), time.Now()); after > 0 && retryStatus(response.StatusCode) {
		err = fmt.Errorf("%w, and asks for a pause of %s; try again later", err, after.Round(time.Second))
	}
	return err
}

// A stallError ends the request of a body that brings next to nothing.
type stallError struct {
	bytes int64
	limit time.Duration
}

func (e *stallError) Error() string {
	return fmt.Sprintf("the server stalls: %d bytes in %v", e.bytes, e.limit)
}

func (e *stallError) Timeout() bool { return true }

// watchedBody reads a body that must bring stallBytes in each period of the time limit.
type watchedBody struct {
	io.ReadCloser
	read   atomic.Int64
	cancel context.CancelCauseFunc
	ended  chan struct{}
	done   chan struct{}
	// cause is the reason of the end of the request.
	cause func() error
}

// watch ends the request of the context when the body stalls. The caller must close the body.
func watch(ctx context.Context, cancel context.CancelCauseFunc, body io.ReadCloser, limit time.Duration) *watchedBody {
	w := &watchedBody{ReadCloser: body, cancel: cancel, ended: make(chan struct{}), done: make(chan struct{}),
		cause: func() error { return context.Cause(ctx) }}
	go w.watchProgress(limit)
	return w
}

func (w *watchedBody) watchProgress(limit time.Duration) {
	defer close(w.done)
	tick := time.NewTicker(limit)
	defer tick.Stop()
	for last := int64(0); ; {
		select {
		case <-w.ended:
			return
		case <-tick.C:
		}
		now := w.read.Load()
		if now-last < stallBytes {
			w.cancel(&stallError{now - last, limit})
			return
		}
		last = now
	}
}

func (w *watchedBody) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	w.read.Add(int64(n))
	if err != nil && !errors.Is(err, io.EOF) {
		if cause := w.cause(); cause != nil {
			err = cause
		}
	}
	return n, err
}

func (w *watchedBody) Close() error {
	if w.ended == nil {
		return nil
	}
	close(w.ended)
	<-w.done
	w.ended = nil
	err := w.ReadCloser.Close()
	w.cancel(context.Canceled)
	return err
}
