package integration

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// An fdSocket is a unix socket on which a runtime hands over descriptors.
type fdSocket struct {
	path     string
	listener *net.UnixListener
}

func listenForFDs(t testing.TB) *fdSocket {
	t.Helper()
	path := filepath.Join(t.TempDir(), "c") // short: a socket's path has 107 bytes
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return &fdSocket{path, l}
}

// receive takes the message of the next connection: its bytes and descriptors,
// which the test's end closes.
func (s *fdSocket) receive(t testing.TB) (string, []*os.File) {
	t.Helper()
	if err := s.listener.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	conn, err := s.listener.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	data, oob := make([]byte, 64<<10), make([]byte, unix.CmsgSpace(4*8))
	n, oobn, _, _, err := conn.ReadMsgUnix(data, oob)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		t.Fatal(err)
	}
	var files []*os.File
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range fds {
			f := os.NewFile(uintptr(fd), "received")
			t.Cleanup(func() { f.Close() })
			files = append(files, f)
		}
	}
	return string(data[:n]), files
}

// receivePidfd takes a pidfd from the next connection and returns the process
// it stands for.
func (s *fdSocket) receivePidfd(t testing.TB) (pid int) {
	t.Helper()
	_, files := s.receive(t)
	if len(files) != 1 {
		t.Fatalf("pidfd socket: %d descriptors", len(files))
	}
	info := content(t, "/proc/self/fdinfo/"+strconv.Itoa(int(files[0].Fd())))
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, "Pid:"); ok {
			pid, err := strconv.Atoi(strings.TrimSpace(value))
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
	}
	t.Fatalf("no pidfd: %s", info)
	return 0
}
