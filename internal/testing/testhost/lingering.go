package testhost

import (
	"errors"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// LingeringSocket returns a socket. Its last close waits for an hour, or until the end of the test.
func LingeringSocket(t testing.TB) int {
	t.Helper()
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() //nolint:errcheck // nothing was written
	conn, err := net.DialTCP("tcp", nil, listener.Addr().(*net.TCPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // the copy stays open
	peer, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { peer.Close() })
	fd, err := descriptor.Duplicate(conn) // the close of conn does not wait then
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = unix.Write(fd, make([]byte, 1<<16))
	}
	if !errors.Is(err, unix.EAGAIN) {
		t.Fatal(err)
	}
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3600}); err != nil {
		t.Fatal(err)
	}
	// The close of a socket that does not block does not wait.
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
	return fd
}
