package integration

import "testing"

func TestOnlyListedSkipsAreAllowed(t *testing.T) {
	for _, reason := range []string{"a reason nobody listed", "", "# Reasons for which an integration test may skip where CI=true, one per line,"} {
		if allowedSkip(t, reason) {
			t.Errorf("%q is allowed", reason)
		}
	}
}
