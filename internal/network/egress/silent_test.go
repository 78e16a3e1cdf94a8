package egress

import (
	"errors"
	"net"
	"os"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// A parent without free descriptors closes connections without an answer. It still has its sandboxes.
func TestAParentThatDoesNotAnswerHasItsSandboxes(t *testing.T) {
	testhost.Concurrent(t)
	e := Egress{Dir: t.TempDir()}
	socket, err := e.listen()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	silent, err := net.FileListener(socket)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := silent.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	defer func() { silent.Close(); <-done }()
	if err := os.MkdirAll(e.boxDir("box"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, has := e.Has(t.Context(), "box")
	s := newSandbox(t)
	for operation, err := range map[string]error{
		"has": has, "suspend": e.Suspend(t.Context(), "box"), "dismiss": e.Dismiss(t.Context(), "box"),
		"admit": e.Admit(t.Context(), Box{Key: "box"}, s.sockets), "change": e.Change(t.Context(), Box{Key: "box"}),
	} {
		if !errors.Is(err, errNoAnswer) {
			t.Errorf("%s: %v", operation, err)
		}
	}
	if !statedir.Exists(e.boxDir("box")) {
		t.Error("the record of the sandbox is gone")
	}
}
