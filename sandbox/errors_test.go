package sandbox

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
)

// A launcher's error about a sandbox can come with other causes, such as the end of the caller's context.
func TestAnErrorAboutASandboxKeepsAllItsCauses(t *testing.T) {
	stopped := &fault.SandboxError{ID: "box", Err: ErrNotRunning}
	for _, err := range []error{
		errors.Join(stopped, context.Canceled),
		fmt.Errorf("after %w: %w", context.Canceled, stopped),
		errorAbout("box", errors.Join(context.Canceled, stopped)),
	} {
		got := errorAbout("box", err)
		if !errors.Is(got, ErrNotRunning) || !errors.Is(got, context.Canceled) {
			t.Errorf("%v: not running %t, canceled %t", got, errors.Is(got, ErrNotRunning), errors.Is(got, context.Canceled))
		}
		if want := (&Error{"box", ErrNotRunning}).Error(); got.Error() != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
