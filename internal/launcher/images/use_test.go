package images

import (
	"errors"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/images/store"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
)

func TestAnImageInUseNamesItsUsers(t *testing.T) {
	err := conditionError(&store.InUseError{Image: "sha256:1", Users: []string{SandboxUse("box", "c62371dc44f9"), SnapshotUse("ready", "sb-c62371dc44f9-ABC")}})
	if want := "in use by sandbox box, snapshot ready;"; !errors.Is(err, fault.ErrBusy) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}
