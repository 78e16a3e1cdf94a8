package devices

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

func TestDevicesAreNodesOfTheirOwn(t *testing.T) {
	testhost.NeedRoot(t, "nodes are made")
	const uid, gid = 1 << 20, 1<<20 + 1
	umask := unix.Umask(0o077)
	dev, err := Mount(uid, gid)
	unix.Umask(umask)
	if err != nil {
		t.Fatal(err)
	}
	testhost.CloseAfter(t, dev)
	at := fmt.Sprintf("/proc/self/fd/%d/", dev.Fd())
	for _, d := range devices() {
		var own, host unix.Stat_t
		if err := unix.Lstat(at+d.name, &own); err != nil {
			t.Fatal(err)
		}
		if err := unix.Lstat("/dev/"+d.name, &host); err != nil {
			t.Fatal(err)
		}
		if own.Mode != unix.S_IFCHR|0o666 || own.Rdev != host.Rdev || own.Uid != uid || own.Gid != gid {
			t.Errorf("%s: mode %o, device %x, owner %d:%d", d.name, own.Mode, own.Rdev, own.Uid, own.Gid)
		}
		if own.Dev == host.Dev {
			t.Errorf("%s is in the host's file system", d.name)
		}
	}
	for _, l := range links() {
		if to, err := os.Readlink(at + l[0]); to != l[1] || err != nil {
			t.Errorf("%s leads to %q, %v", l[0], to, err)
		}
	}
}
