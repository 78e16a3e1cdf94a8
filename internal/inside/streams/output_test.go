package streams

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

func TestDrainTakesAllThatIsThere(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close() // stays open: there is no end to wait for
	if _, err := unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, PipeCapacity); err != nil {
		t.Fatal(err)
	}
	want := strings.Repeat("x", PipeCapacity)
	if _, err := w.WriteString(want); err != nil {
		t.Fatal(err)
	}
	if err := r.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := copyAll(&out, r, r, func() bool { return false }); err != nil || out.String() != want {
		t.Errorf("got %d bytes, %v", out.Len(), err)
	}
	if err := r.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := copyAll(&out, r, r, func() bool { return false }); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the deadline is no error: %v", err)
	}
}

// A hangup is a terminal whose end comes before its last text.
type hangup struct{ reads int }

func (h *hangup) Read(b []byte) (int, error) {
	h.reads++
	if h.reads == 2 {
		return copy(b, "last"), nil
	}
	return 0, &os.PathError{Op: "read", Path: "/dev/ptmx", Err: unix.EIO}
}

func TestTextAfterTheEndOfATerminalIsRead(t *testing.T) {
	var out bytes.Buffer
	if err := copyUntil(&out, terminalReader{&hangup{}}); err != nil || out.String() != "last" {
		t.Errorf("%q, %v", &out, err)
	}
}

// A full disk behind the writer is no end of a terminal.
func TestErrorsOfTheWriterAreNoEndOfATerminal(t *testing.T) {
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	if _, err := slave.WriteString("text"); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	if err := CopyTerminal(brokenWriter{}, master); !errors.Is(err, unix.EIO) {
		t.Errorf("%v", err)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, unix.EIO }

// A slowWriter lets one write at a time pass.
type slowWriter struct {
	begun, goOn chan struct{}
	writes      int
}

func (w *slowWriter) Write(b []byte) (int, error) {
	w.writes++
	w.begun <- struct{}{}
	<-w.goOn
	return len(b), nil
}

// Nothing is written for a caller that has given up, but for the write that has begun.
func TestNoWriteBeginsAfterTheEnd(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if _, err := unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, PipeCapacity); err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteString(strings.Repeat("x", PipeCapacity)); err != nil {
		t.Fatal(err)
	}
	to := &slowWriter{begun: make(chan struct{}), goOn: make(chan struct{})}
	s := Streams{Out: []*Stream{{File: r, Raw: -1, To: to}}}
	s.Begin()
	<-to.begun
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Finish(ctx); !errors.Is(err, ErrNotTaken) {
		t.Errorf("got %v", err)
	}
	go func() {
		for range to.begun {
		}
	}()
	close(to.goOn)
	s.copying.Wait()
	close(to.begun)
	if to.writes != 1 {
		t.Errorf("%d writes", to.writes)
	}
}

func TestACaptureKeepsHeadAndTail(t *testing.T) {
	for _, tt := range []struct {
		limit   int64
		writes  []string
		want    string
		omitted int64
	}{
		{10, nil, "", 0},
		{10, []string{"abcdefghij"}, "abcdefghij", 0},
		{10, []string{"abc", "defg", "hijk"}, "abcdeghijk", 1},
		{11, []string{"abcdefghijklmnopqrstuvwxyz"}, "abcdefvwxyz", 15},
		{1, []string{"ab", "c"}, "a", 2},
		{10, []string{"abcd", "ä", "öüéß"}, "abcdéß", 6}, // no part of a character is left
	} {
		c := Capture{Limit: tt.limit}
		for _, text := range tt.writes {
			if n, err := c.Write([]byte(text)); n != len(text) || err != nil {
				t.Fatal(n, err)
			}
		}
		if got, omitted := c.Take(); string(got) != tt.want || omitted != tt.omitted {
			t.Errorf("%d bytes of %q: got %q, %d missing", tt.limit, tt.writes, got, omitted)
		}
	}
}
