package stamps

import (
	"os"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// TestMain holds that no test leaves a descriptor or a mount.
func TestMain(m *testing.M) { os.Exit(testhost.RunMounting(m)) }
