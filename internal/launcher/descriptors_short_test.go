package launcher

import (
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Too few descriptors do not show that a sandbox is gone.
func TestASandboxIsPresentIfItsRecordCannotBeRead(t *testing.T) {
	sb := createUp(t, newTestLauncher(t), "", spec.Config{})
	var present bool
	testhost.WithFreeDescriptors(t, 0, func() { present = sb.session.Present() })
	if !present {
		t.Error("without descriptors the sandbox counts as gone")
	}
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	if sb.session.Present() {
		t.Error("a removed sandbox counts as present")
	}
}
