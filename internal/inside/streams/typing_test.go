package streams_test

import (
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
)

// A shell sets the mode of its terminal when it starts, and again for each command.
func TestEndOfInputIsTypedAgainInEachMode(t *testing.T) {
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer slave.Close()
	ended := make(chan struct{})
	go func() {
		streams.TypeIn(master, strings.NewReader(""))
		close(ended)
	}()
	input := make([]byte, 10)
	reads := func(want string) {
		t.Helper()
		if err := slave.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if n, _ := slave.Read(input); string(input[:n]) != want {
			t.Fatalf("got %q, want %q", input[:n], want)
		}
	}
	setMode := func(add, remove uint32) {
		t.Helper()
		err := descriptor.Use(slave, func(fd int) error {
			mode, err := unix.IoctlGetTermios(fd, unix.TCGETS)
			if err != nil {
				return err
			}
			mode.Lflag = mode.Lflag&^remove | add
			return unix.IoctlSetTermios(fd, unix.TCSETSW, mode)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	reads("")
	for range 2 {
		setMode(0, unix.ICANON|unix.ECHO)
		reads("\x04")
		setMode(unix.ICANON, 0)
		reads("")
	}
	if err := master.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("TypeIn goes on after the end of the terminal")
	}
}
