package router

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
)

// While another process holds the router, a caller waits no longer than its context lasts.
func TestAContextEndsTheWaitForTheRouter(t *testing.T) {
	w := newWorld(t)
	m := Member{Link: "s-one", Number: 1}
	sandbox := w.attach(t, m)
	self, err := process.Of(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	other, err := os.Open(w.router.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := unix.Flock(int(other.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func(context.Context) error{
		"attach":  func(ctx context.Context) error { _, err := w.router.Attach(ctx, sandbox, m); return err },
		"detach":  func(ctx context.Context) error { _, err := w.router.Detach(ctx, nil, m.Link); return err },
		"regrant": func(ctx context.Context) error { _, err := w.router.Regrant(ctx, sandbox, m); return err },
		"publish": func(ctx context.Context) error { return w.router.Publish(ctx, sandbox, self, m.Link, victimPorts) },
		"prune":   func(ctx context.Context) error { return w.router.Prune(ctx, nil) },
		"repair":  w.router.Repair,
		"traffic": func(ctx context.Context) error { _, err := w.router.Traffic(ctx, m.Link); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		if err := w.doOnHost(func() error { return call(ctx) }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
}

// Processes that read the traffic all the time hold the lock of the router at each moment. A change
// still gets its turn.
func TestReadersDoNotStarveAChange(t *testing.T) {
	testhost.Concurrent(t)
	w := newWorld(t)
	m := Member{Link: "s-one", Number: 1}
	sandbox := w.attach(t, m)
	w.attach(t, Member{Link: "s-two", Number: 2}) // the router stays
	reading, stop := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	defer readers.Wait()
	defer stop()
	for range 8 {
		readers.Go(func() {
			for reading.Err() == nil {
				if _, err := w.router.Traffic(reading, m.Link); err != nil && reading.Err() == nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), testhost.Patience)
		err := w.doOnHost(func() error {
			if _, err := w.router.Detach(ctx, sandbox, m.Link); err != nil {
				return err
			}
			_, err := w.router.Attach(ctx, sandbox, m)
			return err
		})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
	}
}
