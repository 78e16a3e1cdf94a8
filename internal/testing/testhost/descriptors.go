package testhost

import (
	"testing"

	"golang.org/x/sys/unix"
)

// WithFreeDescriptors calls f while this process can open no more than that number of files. No other test may
// run meanwhile.
func WithFreeDescriptors(t testing.TB, free int, f func()) {
	t.Helper()
	next, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(next)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	short := unix.Rlimit{Cur: uint64(next + free), Max: limit.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &short); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
	}()
	f()
}
