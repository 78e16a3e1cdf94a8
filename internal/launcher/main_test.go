package launcher

import (
	"os"
	"runtime"
	"testing"
)

// TestMain keeps the first thread to itself, as programs with a launcher do.
func TestMain(m *testing.M) {
	runtime.LockOSThread()
	os.Exit(m.Run())
}
