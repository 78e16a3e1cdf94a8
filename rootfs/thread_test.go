package rootfs

import (
	"errors"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// The kernel counts what a sandbox takes for the owner of its user namespace.
func TestUserNamespaceBelongsToTheSandbox(t *testing.T) {
	asRoot(t)
	r := open(t, testConfig())
	users := r.TakeUserNamespace()
	defer users.Close()
	if again := r.TakeUserNamespace(); again != nil {
		t.Errorf("handed over twice: %v", again)
	}
	owner, err := unix.IoctlGetUint32(int(users.Fd()), unix.NS_GET_OWNER_UID)
	if err != nil || owner != testBase {
		t.Errorf("the owner is %d, want %d: %v", owner, testBase, err)
	}
}

func TestThreadHasItsUserBack(t *testing.T) {
	asRoot(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil { // a peer's rights clear it
		t.Fatal(err)
	}
	before, refused := fileIDs(t), errors.New("refused")
	err := onThreadOf(testBase, func() error {
		if r, e, s := unix.Getresuid(); r != testBase || e != testBase || s != 0 {
			t.Errorf("ids %d %d %d", r, e, s)
		}
		return refused
	})
	if !errors.Is(err, refused) {
		t.Error(err)
	}
	if after := fileIDs(t); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	if dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); err != nil || dumpable != 1 {
		t.Errorf("dumpable: %d, %v", dumpable, err)
	}
}
