package launcher

import (
	"errors"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// TestNobodyTakesAnotherUsersSandbox by asking for its name, healthy or not.
func TestNobodyTakesAnotherUsersSandbox(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "box", spec.Config{})
	ask := func() {
		t.Helper()
		got, err := l.Create(t.Context(), protocol.Create{Name: "box", Reuse: true}, Sources{UID: 1001})
		if !errors.Is(err, fault.ErrExists) {
			t.Errorf("got %v, %v", got, err)
		}
	}
	ask()
	killInit(t, sb)
	ask()
	if i, err := l.Info(t.Context(), "box"); err != nil || i.Owner != 0 || i.State != spec.StateStopped {
		t.Errorf("it is %+v, %v", i, err)
	}
	if err := sb.Close(); err != nil {
		t.Error(err)
	}
	checkNothingLeft(t, l)
}
