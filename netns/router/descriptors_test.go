package router

import (
	"os"
	"testing"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// Each number of free descriptors gives a connection or an error. A panic would end the launcher.
func TestTooFewDescriptorsForAFirewallAreAnError(t *testing.T) {
	namespace, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer namespace.Close()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	free, err := unix.Dup(0) // the lowest free number
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(free)
	refused := 0
	for more := range 8 {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(free + more), Max: limit.Max}); err != nil {
			t.Fatal(err)
		}
		f, err := openFirewall(namespace, "test", nftables.AsLasting())
		if restored := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); restored != nil {
			t.Fatal(restored)
		}
		if err != nil {
			refused++
			continue
		}
		f.close()
	}
	if refused == 0 || refused == 8 {
		t.Errorf("%d of 8 refused", refused)
	}
}
