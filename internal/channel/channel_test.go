package channel

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// channels are both ends of one socket; the second is bare.
func channels(t testing.TB, maxFiles int) (*Conn, int) {
	t.Helper()
	ch, fd, err := Pair(maxFiles)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ch.Close()
		ch.Discard()
	})
	return ch, fd
}

func TestFramesKeepTheirDescriptors(t *testing.T) {
	ch, fd := channels(t, 3)
	files := testhost.OpenNull(t, 3)
	parts := []struct {
		bytes string
		fds   []int
	}{
		{"\x00\x00\x00\x01a", nil},
		{"\x02\x00\x00\x01b", files[:2]},
		{"\x01\x00\x00\x02c", files[2:]},
		{"d\x00\x00\x00\x00", nil},
	}
	for _, p := range parts {
		if err := unix.Sendmsg(fd, []byte(p.bytes), unix.UnixRights(p.fds...), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	unix.Close(fd)
	for _, want := range []struct {
		body  string
		files int
	}{{"a", 0}, {"b", 2}, {"cd", 1}, {"", 0}} {
		body, got, err := ch.Receive(t.Context(), 2)
		if err != nil || string(body) != want.body || len(got) != want.files {
			t.Fatalf("got %q with %d files, %v; want %+v", body, len(got), err, want)
		}
		descriptor.Close(got...)
	}
	if _, _, err := ch.Receive(t.Context(), 2); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

func TestFramesThatAreRefused(t *testing.T) {
	tests := map[string]struct {
		bytes string
		files int
	}{
		"too long":                     {"\x00\x00\x00\x0aabc", 0},
		"of 16 MiB":                    {"\x00\xff\xff\xffabc", 0},
		"more descriptors than come":   {"\x02\x00\x00\x01a", 1},
		"more descriptors than wanted": {"\x04\x00\x00\x01a", 4},
		"a bomb of descriptors":        {"\x00\x00\x00\x01a", MaxFiles},
		"cut off":                      {"\x00\x00\x00\x03a", 0},
		"nothing":                      {"", 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			ch, fd := channels(t, 3)
			before := openFiles()
			if test.bytes != "" {
				if err := unix.Sendmsg(fd, []byte(test.bytes), unix.UnixRights(testhost.OpenNull(t, test.files)...), nil, 0); err != nil {
					t.Fatal(err)
				}
			}
			unix.Close(fd)
			body, _, err := ch.Receive(t.Context(), 9)
			var frame *FrameError
			if !errors.As(err, &frame) && !errors.Is(err, io.EOF) {
				t.Errorf("taken: %q, %v", body, err)
			}
			ch.Discard()
			if now := openFiles() - test.files; now >= before {
				t.Errorf("%d descriptors are open, %d were", now, before)
			}
		})
	}
}

func TestALongFrameIsTakenAtTheSecondTry(t *testing.T) {
	ch, fd := channels(t, 1)
	other, err := New(fd, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	body := bytes.Repeat([]byte("0123456789"), 100_000)
	sent := make(chan error)
	go func() { sent <- other.Send(context.Background(), body) }()
	var frame *FrameError
	if _, _, err := ch.Receive(t.Context(), 100); !errors.As(err, &frame) || frame.TooLong != len(body) {
		t.Fatalf("%v", err)
	}
	got, _, err := ch.Receive(t.Context(), frame.TooLong)
	if err != nil || !bytes.Equal(got, body) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// Who reads late has what was said before the socket was hung up, and the other end
// is told.
func TestWhatHasComeOutlivesTheHangUp(t *testing.T) {
	ch, fd := channels(t, 1)
	other, err := New(fd, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := other.Send(t.Context(), []byte("last word")); err != nil {
		t.Fatal(err)
	}
	ch.HangUp()
	if body, _, err := ch.Receive(t.Context(), 100); err != nil || string(body) != "last word" {
		t.Errorf("%q, %v", body, err)
	}
	if _, _, err := ch.Receive(t.Context(), 100); !errors.Is(err, io.EOF) {
		t.Errorf("then: %v", err)
	}
	if _, _, err := other.Receive(t.Context(), 100); !errors.Is(err, io.EOF) {
		t.Errorf("at the other end: %v", err)
	}
	if err := ch.Send(t.Context(), nil); !errors.Is(err, io.EOF) {
		t.Errorf("what is sent: %v", err)
	}
	ch.Close()
	ch.HangUp()
}

// TestDescriptorsThatCannotBeTaken lowers the limit of this process so that the
// kernel drops what was sent: the next frame is whole again.
func TestDescriptorsThatCannotBeTaken(t *testing.T) {
	ch, fd := channels(t, 1)
	defer unix.Close(fd)
	file := testhost.OpenNull(t, 1)
	for range 2 {
		if err := unix.Sendmsg(fd, []byte{1, 0, 0, 0}, unix.UnixRights(file...), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	_, _, err := ch.Receive(t.Context(), 0)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	var frame *FrameError
	if !errors.As(err, &frame) || !frame.Lost {
		t.Errorf("without room: %v", err)
	}
	_, files, err := ch.Receive(t.Context(), 0)
	if err != nil || len(files) != 1 {
		t.Errorf("with room: %d files, %v", len(files), err)
	}
	descriptor.Close(files...)
}

// A client gives the launcher a socket that the client has open, too. On such a socket the client
// can set options.
func TestPidfdsOfTheSenderAreClosed(t *testing.T) {
	ch, fd := channels(t, 1)
	defer unix.Close(fd)
	err := ch.Control(func(own uintptr) {
		switch err := unix.SetsockoptInt(int(own), unix.SOL_SOCKET, unix.SO_PASSPIDFD, 1); err {
		case nil:
		case unix.ENOPROTOOPT:
			t.Skip("this kernel has no SO_PASSPIDFD (Linux 6.5)")
		default:
			t.Fatal(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	before := openFiles()
	for range 10 {
		if _, err := unix.Write(fd, make([]byte, headerSize)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := ch.Receive(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
	}
	if now := openFiles(); now > before {
		t.Errorf("%d descriptors are open, %d were", now, before)
	}
}

// The close of a socket with SO_LINGER can take long. Descriptors that are not counted must not be
// open meanwhile.
func TestRefusedDescriptorsDoNotLinger(t *testing.T) {
	ch, fd := channels(t, MaxFiles)
	defer unix.Close(fd)
	refusal := errors.New("too many")
	ch.Count(func(int) error { return refusal })
	before := openFiles()
	socket := testhost.LingeringSocket(t)
	files := testhost.OpenNull(t, 20)
	err := unix.Sendmsg(fd, []byte{21, 0, 0, 0}, unix.UnixRights(append([]int{socket}, files...)...), nil, 0)
	if err := errors.Join(err, unix.Close(socket)); err != nil {
		t.Fatal(err)
	}
	received := make(chan error, 1)
	go func() {
		_, _, err := ch.Receive(t.Context(), 0)
		received <- err
	}()
	select {
	case err := <-received:
		if !errors.Is(err, refusal) {
			t.Errorf("got %v", err)
		}
	case <-time.After(testhost.Patience):
		t.Fatal("the close of the descriptors takes long")
	}
	// The peer of the socket and the files of this test stay open.
	if now := openFiles(); now > before+1+20 {
		t.Errorf("%d descriptors are open, %d were", now, before)
	}
}

// FuzzReceive sends any bytes, in two parts and with descriptors beside each.
func FuzzReceive(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x01a"), []byte("\x01\x00\x00\x00"), uint8(0), uint8(1))
	f.Add([]byte("\x00\x00"), []byte("\x00\x02ab\x05\x00\x00\x01c"), uint8(2), uint8(5))
	f.Add([]byte("\x00\xff\xff\xff"), []byte("x"), uint8(0), uint8(0))
	fds := testhost.OpenNull(f, 8)
	f.Fuzz(func(t *testing.T, first, second []byte, a, b uint8) {
		const most = 4
		before := openFiles()
		ch, fd, err := Pair(most)
		if err != nil {
			t.Fatal(err)
		}
		for i, part := range [][]byte{first, second} {
			if len(part) == 0 {
				continue // would be sent as one byte
			}
			n := int([]uint8{a, b}[i]) % len(fds)
			// What does not fit into the socket is not sent.
			_ = unix.Sendmsg(fd, part, unix.UnixRights(fds[:n]...), nil, unix.MSG_DONTWAIT)
		}
		unix.Close(fd)
		total := 0
		for {
			body, files, err := ch.Receive(context.Background(), 64<<10)
			if len(files) > most || len(body) > 64<<10 {
				t.Errorf("%d bytes with %d files", len(body), len(files))
			}
			descriptor.Close(files...)
			if err != nil {
				break
			}
			if total += headerSize + len(body); total > len(first)+len(second) {
				t.Fatal("more came out than was sent")
			}
		}
		ch.Close()
		ch.Discard()
		if now := openFiles(); now > before {
			t.Errorf("%d descriptors are open, %d were", now, before)
		}
	})
}
