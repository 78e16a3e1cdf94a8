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

// A stuck provider has sandboxes with a process that does not end.
type stuck struct{ sandboxtest.Fake }

func (s *stuck) Create(ctx context.Context, r sandbox.Request) (sandbox.Instance, error) {
	return plain(s.Fake.Create(ctx, r))
}

func (*stuck) Remove(ctx context.Context, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

// A process that has been killed can take long to end in the kernel.
func TestCloseSaysWhyARemovalTakesLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := sandbox.NewManager(sandbox.ManagerConfig{Prefer: []string{sandboxtest.Name}, Providers: []sandbox.Provider{&stuck{}}})
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
