package integration

import (
	"math/rand/v2"
	"os"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/failpoint"
)

// failpointsVariable being "all" has each command be killed at all of its failpoints.
const failpointsVariable = "SANDBOX_RUNTIME_INTEGRATION_FAILPOINTS"

// someFailpoints are every of-th of the first n failpoints, others each time, and one
// at least: those at which a test kills. A short run takes a quarter of them.
func someFailpoints(n, of int) (some []int) {
	switch {
	case os.Getenv(failpointsVariable) == "all":
		of = 1
	case testing.Short():
		of *= 4
	}
	if n < 1 {
		return nil
	}
	for at := 1 + rand.N(min(of, n)); at <= n; at += of {
		some = append(some, at)
	}
	return some
}

// strikeAgain kills a command that goes on with what a killed one has left in the
// sandbox c, somewhere.
func (s *sandboxes) strikeAgain(t *testing.T) {
	t.Helper()
	if _, err := failpoint.Run(s.command("exec", "c", "true"), 1+rand.N(200), patience); err != nil {
		t.Fatal(err)
	}
}
