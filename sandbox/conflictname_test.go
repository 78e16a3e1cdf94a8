package sandbox_test

import (
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// The sandbox chooses the names. None of them makes a line of its own in an error.
func TestAConflictHasOneLine(t *testing.T) {
	err := &sandbox.ConflictError{Conflicts: []sandbox.Unapplied{{Path: "/p/a\n/etc/passwd", Reason: "has changed"}}}
	want := "nothing was applied, since the host has changed meanwhile; name other paths, or overwrite these:\n" + `"/p/a\n/etc/passwd": has changed`
	if err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
}
