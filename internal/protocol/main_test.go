package protocol

import (
	"os"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// TestMain fails where a test leaves descriptors or goroutines behind.
func TestMain(m *testing.M) { os.Exit(testhost.RunServing(m)) }
