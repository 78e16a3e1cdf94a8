package sandbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox/sandboxtest"
)

// A stuckProvider has sandboxes with a process that does not end.
type stuckProvider struct{ sandboxtest.Fake }

func (s *stuckProvider) Create(ctx context.Context, r sandbox.Request) (sandbox.Instance, error) {
	return bareInstance(s.Fake.Create(ctx, r))
}

func (*stuckProvider) Remove(ctx context.Context, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

// A process that has been killed can take long to end in the kernel.
func TestCloseSaysWhyARemovalTakesLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := sandbox.NewManager(sandbox.ManagerConfig{Prefer: []string{sandboxtest.Name}, Providers: []sandbox.Provider{&stuckProvider{}}})
		if err != nil {
			t.Fatal(err)
		}
		sb, err := m.Create(t.Context(), sandbox.Config{})
		if err != nil {
			t.Fatal(err)
		}
		err = sb.Close()
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "has not ended") || !strings.Contains(err.Error(), "prune") {
			t.Errorf("got %v", err)
		}
	})
}
