package frontend

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pair is a pair of sockets.
func pair(t *testing.T) (ours, theirs *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs = os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	return ours, theirs
}

// A process sends its pidfd once the gate is open, and not before. The caller gets it.
func TestGateHoldsAProcess(t *testing.T) {
	g, err := newGate()
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	caller, to := pair(t)
	g.to = to
	sent := make(chan error, 1)
	go func() {
		sent <- unix.Sendmsg(int(g.theirs.Fd()), []byte("setns"), unix.UnixRights(int(os.Stderr.Fd())), nil, 0)
	}()
	select {
	case err := <-sent:
		t.Fatalf("sent before the gate is open (%v)", err)
	case <-time.After(50 * time.Millisecond):
	}
	if err := g.open(); err != nil {
		t.Fatal(err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	text, fd, err := receiveFile(caller)
	if err != nil || string(text) != "setns" {
		t.Fatalf("%q, %v", text, err)
	}
	unix.Close(fd)
}
