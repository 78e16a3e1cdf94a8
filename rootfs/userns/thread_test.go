package userns

import (
	"errors"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// other is no user of the host.
const other = 1 << 20

func TestThreadHasItsUserBack(t *testing.T) {
	testhost.NeedRoot(t, "a thread gets another user")
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil { // a peer's rights clear it
		t.Fatal(err)
	}
	before, refused := testhost.ThreadIDs(t), errors.New("refused")
	err := onThreadOf(other, func() error {
		if r, e, s := unix.Getresuid(); r != other || e != other || s != 0 {
			t.Errorf("ids %d %d %d", r, e, s)
		}
		return refused
	})
	if !errors.Is(err, refused) {
		t.Error(err)
	}
	if after := testhost.ThreadIDs(t); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	if dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); err != nil || dumpable != 1 {
		t.Errorf("dumpable: %d, %v", dumpable, err)
	}
}
