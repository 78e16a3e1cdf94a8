package launcher

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Too few descriptors do not show that a sandbox is gone.
func TestASandboxIsPresentIfItsRecordCannotBeRead(t *testing.T) {
	sb := up(t, newTestLauncher(t), "", spec.Config{})
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	short := unix.Rlimit{Cur: 0, Max: limit.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &short); err != nil {
		t.Fatal(err)
	}
	present := sb.session.Present()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
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
