package streams

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

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
	if err := CopyOutput(&out, r); err != nil || out.String() != want {
		t.Errorf("got %d bytes, %v", out.Len(), err)
	}
	if err := r.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := CopyOutput(&out, r); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the deadline is no error: %v", err)
	}
}
