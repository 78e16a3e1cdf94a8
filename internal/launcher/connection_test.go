package launcher

import (
	"errors"
	"os"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A connection that is lost is no sandbox that has ended.
func TestALostConnectionIsNotTheSandboxesEnd(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	conn, err := sb.session.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = sb.Start(t.Context(), spec.Command{Args: []string{"true"}}, [3]*os.File{})
	if err == nil || errors.Is(err, fault.ErrNotRunning) {
		t.Errorf("got %v", err)
	}
	if r, _ := sh(t, sb, "true"); !r.OK() {
		t.Errorf("the next: %+v", r)
	}
}
