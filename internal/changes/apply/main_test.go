package apply

import (
	"fmt"
	"os"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// TestMain holds that no test leaves a descriptor or a mount. The test binary is
// also what is killed and what attacks.
func TestMain(m *testing.M) {
	if role, ok := roles()[os.Getenv(roleVariable)]; ok {
		if err := role(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(testhost.RunMounting(m))
}

const roleVariable = "SANDBOX_RUNTIME_APPLY_TEST"

// roles are what the test binary does as a process of its own.
func roles() map[string]func(args []string) error {
	return map[string]func([]string) error{
		"apply":   applyRole,
		"recover": recoverRole,
		"swap":    swapRole,
	}
}
