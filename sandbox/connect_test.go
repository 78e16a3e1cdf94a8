package sandbox_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// A launcher that does not answer holds up only those who ask for its sandboxes, and
// these for no longer than their contexts.
func TestNobodyWaitsForALauncherThatDoesNotAnswer(t *testing.T) {
	testhost.Concurrent(t)
	dialing := make(chan struct{}, 10)
	var over atomic.Bool
	m, err := sandbox.NewManager(sandbox.ManagerConfig{
		Prefer: []string{sandbox.ProviderLocal},
		Dial: func(ctx context.Context) (*net.UnixConn, error) {
			dialing <- struct{}{}
			<-ctx.Done()
			over.Store(true)
			return nil, ctx.Err()
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	made := make(chan error, 1)
	go func() {
		_, err := m.Create(context.Background(), sandbox.Config{}, sandbox.Using(sandbox.ProviderIsolated))
		made <- err
	}()
	<-dialing
	if _, err := m.List(t.Context()); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := m.Create(ctx, sandbox.Config{}, sandbox.Using(sandbox.ProviderIsolated)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if over.Load() {
		t.Error("they have waited until the attempt to connect was over")
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if err := <-made; !errors.Is(err, sandbox.ErrClosed) {
		t.Errorf("create: %v", err)
	}
}

func TestOpenManagerEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	_, err := sandbox.OpenManager(ctx, sandbox.ManagerConfig{Dial: func(ctx context.Context) (*net.UnixConn, error) {
		cancel()
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
